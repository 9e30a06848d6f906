"""Commands that administer a queue leave a line in the audit log: who ran what, and how it ended.

The line goes to the logger `casque.audit`, and to the file that CASQUE_AUDIT_LOG names, if it is set.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial, wraps
from typing import Any
from urllib.parse import urlsplit

import typer

from casque.cli.logs import TextFormatter
from casque.telemetry import logger
from casque.transport import audit
from casque.transport.scopes import Principal

FILE = "CASQUE_AUDIT_LOG"
SECRET = ("option", "token", "payload", "args", "header")
"""Arguments that may hold a credential or a job's content."""
log = logger("audit")


def audited_call(verb: str, command: Callable[..., None]) -> Callable[..., None]:
    """Log every call of the command, however it ends."""

    @wraps(command)
    def recorded(**given: Any) -> None:
        logged = {name: _loggable(value) for name, value in given.items() if name not in SECRET}
        # In a context of its own: the caller must not be attributed to what this process does later.
        copy_context().run(_record, verb, logged, partial(command, **given))

    recorded.audited = verb  # type: ignore[attr-defined]
    return recorded


def _record(verb: str, arguments: dict[str, Any], command: Callable[[], None]) -> None:
    outcome = "no answer"
    audit.calls_as(Principal(_user(), frozenset()))
    audit.calls_from("the command line", socket.gethostname())
    try:
        command()
        outcome = "done"
    except typer.Exit as ended:
        outcome = "done" if not ended.exit_code else f"failed, exit code {ended.exit_code}"
        raise
    except BaseException as error:
        outcome = f"failed, {type(error).__name__}"
        raise
    finally:
        with _log_to_file():
            audit.note(verb, arguments, outcome)


@contextmanager
def _log_to_file() -> Iterator[None]:
    """Also write the audit log to its file. Only the owner may read that."""
    with ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.INFO)
        if path := os.environ.get(FILE):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            handler = logging.StreamHandler(stack.enter_context(os.fdopen(descriptor, "a", encoding="utf-8")))
            handler.setFormatter(TextFormatter())
            log.addHandler(handler)
            stack.callback(log.removeHandler, handler)
        yield


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())  # a container's user may have no name


def _loggable(value: Any) -> Any:
    """The argument without a password in its URL; None, which is not logged, if it was not given."""
    if value in (False, [], ()):
        return None
    if isinstance(value, str) and "://" in value and "@" in urlsplit(value).netloc:
        return value.replace(urlsplit(value).netloc.rpartition("@")[0] + "@", "", 1)
    return value
