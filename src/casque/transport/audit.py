"""Who changed what, and who was refused: one line each in the log `casque.audit`, whichever wire it came by.

Administrative calls are all written down, with their outcome. Refusals are written down as long as they are few: a
caller that is refused again and again must not be able to fill a disk. A token is never written, only its name and its
public id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from casque.clock import Clock, SystemClock
from casque.errors import CasqueError, NotAllowedError, NotAuthenticatedError
from casque.printable import printable
from casque.service.requests import Request, SetSchedule, verb_of
from casque.telemetry import logger
from casque.transport.scopes import Principal

log = logger("audit")

REFUSALS = NotAllowedError, NotAuthenticatedError
FEW = 30
WINDOW_MS = 10_000
_VALUE_MAX = 200
_LEFT_OUT = ("request_id", "expected")
_CALLED = {"token": "lease"}

_peer: ContextVar[str] = ContextVar("casque_peer", default="")
_principal: ContextVar[Principal | None] = ContextVar("casque_principal", default=None)


def calls_from(wire: str, peer: str) -> None:
    """What is asked from here on, in this task and in those that it starts, comes by this wire from this address."""
    _peer.set(f"{peer} over {wire}")


def calls_as(principal: Principal) -> None:
    """And it is this principal that asks."""
    _principal.set(principal)


@contextmanager
def recorded(request: Request[Any]) -> Iterator[None]:
    """An administrative call: a line when it has ended, however that was."""
    verb, arguments = verb_of(type(request)), _said(request)
    try:
        yield
    except REFUSALS:
        raise  # recorded as a refusal
    except CasqueError as error:
        _write(verb, arguments, f"refused, {error}")
        raise
    except BaseException as error:
        _write(verb, arguments, f"no answer, {type(error).__name__}")
        raise
    _write(verb, arguments, "done")


def refused(what: str, error: BaseException) -> None:
    """A caller may not do that, or is nobody who is known."""
    if _flood.lets_through():
        log.warning("%s by %s: refused, %s", what, _who(), printable(str(error)))


def note(verb: str, arguments: dict[str, Any], outcome: str) -> None:
    """An administrative act that was no call to a queue: a command on a bucket."""
    _write(verb, arguments, outcome)


def _write(verb: str, arguments: dict[str, Any], outcome: str) -> None:
    said = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items() if value is not None)
    log.info("%s(%s) by %s: %s", verb, said, _who(), printable(outcome))


def _who() -> str:
    principal, peer = _principal.get(), _peer.get()
    name = "unknown" if principal is None else repr(principal.name)
    token = "" if principal is None or principal.token is None else f" (token {principal.token})"
    return f"{printable(name)}{token} from {printable(peer) or 'this process'}"


def _said(request: Request[Any]) -> dict[str, Any]:
    """Without payloads, and without what is of no use to a reader. The token of a lease is no secret, but called so it
    would be taken for one."""
    if isinstance(request, SetSchedule):
        spec = request.spec
        return {"name": spec.name, "cron": spec.cron, "entrypoint": spec.job.entrypoint}
    said = {name: getattr(request, name) for name in request.__struct_fields__ if name not in _LEFT_OUT}
    return {
        _CALLED.get(name, name): str(value) if isinstance(value, StrEnum) else value for name, value in said.items()
    }


def _shown(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


class Flood:
    """Lets the first few of every ten seconds through, and says how many it kept back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms = 0
        self._seen = 0

    def lets_through(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms >= WINDOW_MS:
            if self._seen > FEW:
                log.warning("%d more refusals were not written down", self._seen - FEW)
            self._since_ms, self._seen = now_ms, 0
        self._seen += 1
        return self._seen <= FEW


_flood = Flood(SystemClock())
