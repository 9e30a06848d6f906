"""Input checks. Input is checked where it enters; an error names the argument and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from casque.errors import InvalidInputError
from casque.settings import milliseconds
from casque.types import Backoff, Gate, JobState, Missed, Progress, ZoneLease, ZoneRules

ZONES_MAX = 1_000
"""Zones in one claim."""
ZONES_SHOWN_MAX = 10_000
ZONE_WEIGHTS = 0.001, 1_000.0
ZONE_RATES = 0.001, 1_000_000.0
NAME_MAX = 256
KEY_MAX = 1024
ERROR_MAX = 4096
RESULT_MAX = 256 * 1024
BATCH_MAX = 100_000
"""Jobs claimed, or settled, at once. More would block other callers for a good part of a second."""
SCHEDULE_MAX = 200
"""Length of a schedule's name: together with the time of a tick it is the id of a job."""
SCHEDULED_BYTES_MAX = 64 * 1024
HEADERS_MAX = 64
HEADERS_CHARACTERS_MAX = 16_384
LONGEST_S = 1000 * 365 * 24 * 3600
MOMENTS_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999, which calendars can show."""
_INT64 = 2**63


def entrypoint(value: Any) -> str:
    return name("entrypoint", value, NAME_MAX)


def name(argument: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{argument} must be a str, not {type(value).__name__}")
    if not value or len(value) > longest or not value.isprintable():
        raise InvalidInputError(f"{argument} must be 1 to {longest} printable characters, not {value[:80]!r}")
    return _plain_text(value)


def payload(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return value if type(value) is bytes else bytes(memoryview(value))
    hint = "; encode it first, for example with .encode()" if isinstance(value, str) else ""
    raise InvalidInputError(f"payload must be bytes, not {type(value).__name__}{hint}")


def priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_INT64 <= value < _INT64:
        raise InvalidInputError(
            f"priority must be a whole number of at most 64 bits (lower runs first), not {shown(value)}"
        )
    return _plain_int(value)


def max_attempts(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _INT64:
        raise InvalidInputError(
            f"max_attempts must be a whole number from 1 to {_INT64 - 1}, or None for the setting, not {shown(value)}"
        )
    return _plain_int(value)


def max_crashes(value: Any) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return whole("max_crashes", _plain_int(value) if is_number else value, 1)


def result(value: Any) -> bytes | None:
    """A worker's result of a job. It is stored with the job, so it should be short."""
    return None if value is None else blob("result", value, RESULT_MAX)


def headers(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(_is_text(k) and _is_text(v) for k, v in value.items()):
        raise InvalidInputError("headers must map str to str, in characters that UTF-8 has")
    return {_plain_text(k): _plain_text(v) for k, v in value.items()}


PROGRESS_NOTE_MAX = 200
PROGRESS_MAX = 1e15


def progress(done: Any, total: Any = None, note: Any = None) -> Progress:
    """Progress of an attempt."""
    for what, value in (("done", done), ("total", total)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= PROGRESS_MAX
        if not is_number and not (value is None and what == "total"):
            raise InvalidInputError(f"progress: {what} must be a number from 0, not {shown(value)}")
    if note is not None and (not _is_text(note) or len(note) > PROGRESS_NOTE_MAX):
        raise InvalidInputError(f"progress: note must be a str of at most {PROGRESS_NOTE_MAX} characters")
    return Progress(
        _plain_number(done),
        None if total is None else _plain_number(total),
        None if note is None else _plain_text(note),
    )


def job_id(value: Any) -> str:
    if not _is_text(value):
        raise InvalidInputError(f"job_id must be a str in characters that UTF-8 has, not {shown(value)}")
    return _plain_text(value)


def lease_token(value: Any) -> int:
    """For verbs that require a token."""
    if (checked := token(value)) is None:
        raise InvalidInputError("a lease without a token cannot be given back: pass the job as it was claimed")
    return checked


def token(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _INT64:
        raise InvalidInputError(f"token must be the token of a claimed job, not {shown(value)}")
    return _plain_int(value)


def request_id(value: Any) -> str | None:
    return None if value is None else name("request_id", value, NAME_MAX)


def source(value: Any) -> str:
    return name("source", value, NAME_MAX)


def batch(value: Any) -> int:
    return whole("batch", value, 0)


def schedule(value: Any) -> str:
    return name("schedule", value, SCHEDULE_MAX)


def missed(value: Any) -> Missed:
    try:
        return Missed(value)
    except ValueError:
        known = ", ".join(one.value for one in Missed)
        raise InvalidInputError(f"missed must be one of {known}, not {shown(value)}") from None


def whole(argument: str, value: Any, least: int, most: int = _INT64 - 1) -> int:
    """An integer that fits into 64 bits everywhere."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInputError(f"{argument} must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def number(argument: str, value: Any, least: float, most: float) -> float:
    """Refuses NaN, too, which compares with nothing."""
    if (type(value) is not float and type(value) is not int) or not least <= value <= most:
        raise InvalidInputError(f"{argument} must be a number from {least:g} to {most:g}, not {shown(value)}")
    return float(value)


def flag(argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{argument} must be true or false, not {shown(value)}")
    return value


def text(argument: str, value: Any, longest: int) -> str:
    """Any text that UTF-8 can encode, including an empty one."""
    if not _is_text(value):
        raise InvalidInputError(f"{argument} must be a str in characters that UTF-8 has, not {type(value).__name__}")
    if len(value) > longest:
        raise InvalidInputError(f"{argument} must be at most {longest} characters, not {len(value)}")
    return _plain_text(value)


def blob(argument: str, value: Any, longest: int) -> bytes:
    if type(value) is not bytes:
        raise InvalidInputError(f"{argument} must be bytes, not {type(value).__name__}")
    if len(value) > longest:
        raise InvalidInputError(f"{argument} must be at most {longest:,} bytes, not {len(value):,}")
    return value


def few_headers(value: Any) -> dict[str, str]:
    """Headers, of limited number and size."""
    checked = headers(value)
    if len(checked) > HEADERS_MAX:
        raise InvalidInputError(f"headers must be at most {HEADERS_MAX}, not {len(checked)}; use the payload")
    characters = sum(len(one) + len(other) for one, other in checked.items())
    if characters > HEADERS_CHARACTERS_MAX:
        raise InvalidInputError(
            f"headers must be at most {HEADERS_CHARACTERS_MAX:,} characters together, not {characters:,}; "
            "use the payload"
        )
    return checked


def backoff(value: Any) -> Backoff:
    """Checks `spread`, too: a value that is not a number would reach the queue's own arithmetic."""
    if not isinstance(value, Backoff):
        raise InvalidInputError(f"backoff must be a Backoff, not {type(value).__name__}")
    whole("backoff.base_ms", value.base_ms, 0, LONGEST_S * 1000)
    whole("backoff.cap_ms", value.cap_ms, 0, LONGEST_S * 1000)
    number("backoff.spread", value.spread, 0, 1)
    return value


def shown(value: Any) -> str:
    """Enough of a value to recognise it, however large it is."""
    if isinstance(value, int | float | str | bytes | None):
        try:
            return f"{value if not isinstance(value, str | bytes) else value[:80]!r:.80}"
        except ValueError:  # an integer of thousands of digits
            return "a number that is far too large"
    return type(value).__name__


def limit(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _INT64:
        raise InvalidInputError(f"limit must be a whole number from 1 to {_INT64 - 1}, not {shown(value)}")
    return _plain_int(value)


def position(argument: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _INT64:
        raise InvalidInputError(f"{argument} must be a position, a whole number from 0, not {shown(value)}")
    return _plain_int(value)


def entrypoints(value: Any) -> tuple[str, ...] | None:
    """One name, several, or None for any."""
    if value is None:
        return None
    if isinstance(value, str):
        return (entrypoint(value),)
    if not isinstance(value, Iterable):
        raise InvalidInputError(f"entrypoint must be a str, several of them, or None for any, not {value!r}")
    names = tuple([entrypoint(one) for one in value])
    if not names:
        raise InvalidInputError("entrypoint must name at least one; None takes any")
    return names


def states(value: Any) -> frozenset[JobState] | None:
    if value is None:
        return None
    try:
        return frozenset(JobState(one) for one in value)
    except (TypeError, ValueError) as error:
        known = ", ".join(state.value for state in JobState)
        raise InvalidInputError(f"states must be some of {known}: {str(error)[:120]}") from error


def gate(value: Any) -> Gate:
    try:
        return Gate(value)
    except ValueError as error:
        known = ", ".join(one.value for one in Gate)
        raise InvalidInputError(f"gate must be one of {known}, not {shown(value)}") from error


def zone(value: Any) -> str:
    return name("zone", value, NAME_MAX)


def zones(value: Any) -> tuple[str, ...] | None:
    """One name, several, or None for all."""
    if value is None:
        return None
    if isinstance(value, str):
        return (zone(value),)
    if not isinstance(value, Iterable):
        raise InvalidInputError(f"zone must be a str, several of them, or None for all, not {shown(value)}")
    names = tuple(dict.fromkeys(zone(one) for one in value))
    if not 1 <= len(names) <= ZONES_MAX:
        raise InvalidInputError(f"zone must name 1 to {ZONES_MAX} zones, not {len(names)}; None takes all")
    return names


def zone_lease(value: Any, zones: tuple[str, ...] | None = None) -> tuple[str, int]:
    """The zone and token of a zone lease."""
    if type(value) is not ZoneLease:
        raise InvalidInputError(f"zone_lease must be a ZoneLease, not {type(value).__name__}")
    shown_lease = value.zone, value.token
    shown_zone_lease(shown_lease, zones)
    return shown_lease


def shown_zone_lease(value: Any, zones: tuple[str, ...] | None) -> None:
    """For a claim with a zone lease: the claim must not name other zones."""
    if type(value) is not tuple or len(value) != 2:
        raise InvalidInputError("zone_lease must be a zone and a token")
    zone(value[0])
    whole("token", value[1], 0)
    if zones is not None:
        raise InvalidInputError("a claim with the lease of a zone is about that zone: leave the other zones out")


def zone_rules(value: Any) -> ZoneRules:
    """Rules of a zone."""
    if type(value) is not ZoneRules:
        raise InvalidInputError(f"rules must be ZoneRules, not {type(value).__name__}")
    number("weight", value.weight, *ZONE_WEIGHTS)
    if value.running_max is not None:
        whole("running_max", value.running_max, 1)
    if value.per_second is not None:
        number("per_second", value.per_second, *ZONE_RATES)
    flag("paused", value.paused)
    return value


FINISHED = frozenset({JobState.DONE, JobState.DEAD, JobState.CANCELLED})


def finished_states(value: Any) -> frozenset[JobState] | None:
    chosen = states(value)
    if chosen is not None and not chosen <= FINISHED:
        known = ", ".join(sorted(state.value for state in FINISHED))
        raise InvalidInputError(f"states must be some of {known}: only finished jobs are in the archive")
    return chosen


def batch_size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= BATCH_MAX:
        raise InvalidInputError(f"batch_size must be a whole number from 1 to {BATCH_MAX}, not {shown(value)}")
    return value


def span_ms(argument: str, value: Any) -> int:
    """Seconds as a number, or a timedelta; never negative."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidInputError(f"{argument} must be a timedelta or a number of seconds, not {shown(value)}")
    if not 0 <= seconds <= LONGEST_S:
        raise InvalidInputError(f"{argument} must be from 0 to {LONGEST_S} seconds (a thousand years), not {value!r}")
    if not seconds:
        return 0  # the most common value
    return milliseconds(timedelta(seconds=seconds))


def expires_ms(value: Any) -> int:
    """A span that is not empty."""
    span = span_ms("expires", value)
    if not span:
        raise InvalidInputError("expires must be longer than 0 seconds: the job would never run")
    return span


def moment_ms(argument: str, value: Any) -> int:
    if not isinstance(value, datetime):
        raise InvalidInputError(f"{argument} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None:
        raise InvalidInputError(f"{argument} must name its time zone, for example datetime(..., tzinfo=UTC)")
    ms = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if not MOMENTS_MS[0] <= ms <= MOMENTS_MS[1]:
        raise InvalidInputError(f"{argument} must be in the years 1 to 9999 of UTC, not {value.isoformat()}")
    return ms


def moment(argument: str, value: Any) -> datetime:
    """A moment in time, in any time zone."""
    moment_ms(argument, value)
    assert isinstance(value, datetime)
    return value


def error_text(value: Any) -> str | None:
    """An exception or a text, truncated."""
    if value is None:
        return None
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    # File names that are not UTF-8 appear in exception texts as lone surrogates, which JSON cannot hold.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= ERROR_MAX else text[: ERROR_MAX - 1] + "…"


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# A commit and a packet hold plain values only. A text of a template engine or a number of an enum class is an ordinary
# argument, and would fail there: after the border, with all calls of its batch.


def _plain_text(value: str) -> str:
    return value if type(value) is str else str.__str__(value)


def _plain_int(value: int) -> int:
    return value if type(value) is int else int.__int__(value)


def _plain_number(value: float) -> float:
    """Figures of numpy are floats, too."""
    if isinstance(value, int):
        return _plain_int(value)
    return value if type(value) is float else float.__float__(value)
