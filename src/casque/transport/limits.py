"""The limits of a single call, and how `casque serve --limit NAME=VALUE` changes limits by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TypeVar

import msgspec

from casque import checks
from casque.errors import InvalidInputError

L = TypeVar("L", bound=msgspec.Struct)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a single call."""

    payload_bytes: int = 64 * 1024 * 1024
    """Size of a job's payload. Payloads too large for a commit go to `blobs/` long before this limit."""
    result_bytes: int = 256 * 1024
    """Size of a job's result, which is stored in the log and in the archive."""
    jobs_per_enqueue: int = 10_000
    jobs_per_dequeue: int = checks.BATCH_MAX
    outcomes_per_settle: int = checks.BATCH_MAX
    leases_per_heartbeat: int = 10_000
    entrypoints_per_dequeue: int = 1_000
    schedules_per_tenant: int = 100
    """Per token limited to zones or entrypoints. A queue holds at most 1,000 schedules in all."""
    wait_s: float = 300.0
    """How long a dequeue may wait for a first job. A caller that wants to wait longer calls again."""
    waits: int = 20_000
    """Dequeues of one principal that wait at the same time, on all wires together."""
    followers: int = 1_000
    """Readers of one principal that follow the events at the same time, on all wires together."""


DEFAULT_LIMITS = Limits()


def split(pairs: list[str]) -> dict[str, str]:
    """`["waits=100"]` as `{"waits": "100"}`. Raises InvalidInputError."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInputError(f"--limit takes NAME=VALUE, like waits=1000, not {pair!r}")
        given[name.strip().replace("-", "_")] = value.strip()
    return given


def changed(given: dict[str, str], *all_limits: msgspec.Struct) -> list[msgspec.Struct]:
    """The same limits with some of them changed; each name belongs to one of them.

    Raises:
        InvalidInputError: there is no limit of that name, or its value is not a valid number.
    """
    known = [name for limits in all_limits for name in limits.__struct_fields__]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
            raise InvalidInputError(f"--limit: there is no limit {name!r}{hint}")
    return [_with(limits, given) for limits in all_limits]


def _with(limits: L, given: dict[str, str]) -> L:
    values = {
        name: _number(name, given[name], whole=not isinstance(getattr(limits, name), float))
        for name in limits.__struct_fields__
        if name in given
    }
    return msgspec.structs.replace(limits, **values) if values else limits


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = 0
    if not 0 < value < 2**62:
        kind = "a whole number from 1" if whole else "a number of more than 0"
        raise InvalidInputError(f"--limit: {name} must be {kind}, not {text!r}")
    return value
