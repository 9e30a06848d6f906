"""Commands that administer a queue leave a line in the audit log: who, what, and how it ended.

The line goes to the logger `casque.audit`, and to the file that CASQUE_AUDIT_LOG names, if it names one.
"""

from __future__ import annotations

import getpass
import inspect
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

import typer

from casque.cli.logs import TextLine
from casque.telemetry import logger
from casque.transport import audit
from casque.transport.scopes import Principal

C = TypeVar("C", bound=Callable[..., Any])

FILE = "CASQUE_AUDIT_LOG"
SECRET = ("option", "token", "payload", "args", "header")
"""Arguments that may hold a credential, or what only a job is to know."""
log = logger("audit")


def audited(verb: str) -> Callable[[C], C]:
    """Marks a command as one that administers: it is written down, however it ends."""

    def marked(command: C) -> C:
        signature = inspect.signature(command)

        @wraps(command)
        def recorded(*arguments: Any, **named: Any) -> Any:
            asked = signature.bind(*arguments, **named).arguments
            said = {name: _said(value) for name, value in asked.items() if name not in SECRET}
            # In a context of its own: who called is not to be said of what this process does afterwards.
            return copy_context().run(_ended, verb, said, lambda: command(*arguments, **named))

        recorded.audited = verb  # type: ignore[attr-defined]
        return recorded  # type: ignore[return-value]

    return marked


def _ended(verb: str, said: dict[str, Any], command: Callable[[], Any]) -> Any:
    outcome = "no answer"
    audit.calls_as(Principal(_user(), frozenset()))
    audit.calls_from("the command line", socket.gethostname())
    try:
        answer = command()
        outcome = "done"
        return answer
    except typer.Exit as ended:
        outcome = "done" if not ended.exit_code else f"failed, exit code {ended.exit_code}"
        raise
    except BaseException as error:
        outcome = f"failed, {type(error).__name__}"
        raise
    finally:
        with _written():
            audit.note(verb, said, outcome)


@contextmanager
def _written() -> Iterator[None]:
    """Send the audit log to the file that is named for it. Only its owner may read that."""
    with ExitStack() as meanwhile:
        meanwhile.callback(log.setLevel, log.level)
        log.setLevel(logging.INFO)
        if path := os.environ.get(FILE):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            handler = logging.StreamHandler(meanwhile.enter_context(os.fdopen(descriptor, "a", encoding="utf-8")))
            handler.setFormatter(TextLine())
            log.addHandler(handler)
            meanwhile.callback(log.removeHandler, handler)
        yield


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())  # not in the list of users: a container's


def _said(value: Any) -> Any:
    """An address without what may be a password in it; what was left out is not said."""
    if value in (False, [], ()):
        return None
    if isinstance(value, str) and "://" in value and "@" in urlsplit(value).netloc:
        return value.replace(urlsplit(value).netloc.rpartition("@")[0] + "@", "", 1)
    return value
