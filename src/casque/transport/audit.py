"""The audit log `casque.audit`: one line per administrative call or refusal, for every wire.

Every administrative call is logged with its outcome. Refusals are rate-limited, so that a caller that is refused again
and again cannot fill a disk. A line contains a token's name and public id, never the token.
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
_LEFT_OUT = ("request_id", "since")
_CALLED = {"token": "lease"}

_peer: ContextVar[str] = ContextVar("casque_peer", default="")
_principal: ContextVar[Principal | None] = ContextVar("casque_principal", default=None)


def calls_from(wire: str, peer: str) -> None:
    """Set the wire and the peer address of the calls made in this task and in tasks that it starts."""
    _peer.set(f"{peer} over {wire}")


def calls_as(principal: Principal) -> None:
    """Set the principal of these calls."""
    _principal.set(principal)


@contextmanager
def recorded(request: Request[Any]) -> Iterator[None]:
    """Log an administrative call when it ends, with its outcome."""
    verb, arguments = verb_of(type(request)), _arguments_of(request)
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
    """Log a call that was not authenticated or not allowed."""
    if _flood.lets_through():
        log.warning("%s by %s: refused, %s", what, _who(), printable(str(error)))


def note(verb: str, arguments: dict[str, Any], outcome: str) -> None:
    """Log an administrative command that works on the bucket instead of calling a queue."""
    _write(verb, arguments, outcome)


def _write(verb: str, arguments: dict[str, Any], outcome: str) -> None:
    listed = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items() if value is not None)
    log.info("%s(%s) by %s: %s", verb, listed, _who(), printable(outcome))


def _who() -> str:
    principal, peer = _principal.get(), _peer.get()
    name = "unknown" if principal is None else repr(principal.name)
    token = "" if principal is None or principal.token is None else f" (token {principal.token})"
    return f"{printable(name)}{token} from {printable(peer) or 'this process'}"


def _arguments_of(request: Request[Any]) -> dict[str, Any]:
    """The loggable arguments, without payloads. The token of a lease is no secret, but under that name a reader would
    take it for one."""
    if isinstance(request, SetSchedule):
        spec = request.spec
        return {"name": spec.name, "cron": spec.cron, "entrypoint": spec.job.entrypoint}
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name not in _LEFT_OUT}
    return {
        _CALLED.get(name, name): str(value) if isinstance(value, StrEnum) else value for name, value in fields.items()
    }


def _shown(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


class Flood:
    """Passes the first few records of every ten seconds and counts the rest."""

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
