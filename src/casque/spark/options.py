"""Options of a read: `spark.read.format("casque").option(...)`, and the same for `readStream`.

Spark passes options as text with names in lower case. An unknown one is refused: a misspelt `until` would otherwise
read everything. Options may be secrets, so values are never shown.
"""

# ruff: noqa: RUF009  each default is a description

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from casque import checks, times
from casque.errors import InvalidInputError
from casque.scan.scan import CLOCK_SKEW, Scan
from casque.scan.shards import positions
from casque.scan.tables import Table
from casque.storage.url import is_address

C = TypeVar("C", bound=StrEnum)
Moment = int | datetime | Mapping[int, int]

STORE_PREFIX = "store."
ALL, STREAMS = "all", "streams"
"""What an option is for, if not for some tables."""
SECRET = ("secret", "token", "key", "credential", "service_account", "password")
"""Parts of option names that mark a secret."""
SQL_FIX = (
    "Spark drops the OPTIONS of CREATE TABLE ... USING casque; make a view instead, which keeps them: "
    "CREATE TEMPORARY VIEW name USING casque OPTIONS (path '...', table '...')"
)


class OnGone(StrEnum):
    """What a stream or the pipeline does when the next data to read is already deleted."""

    FAIL = "fail"
    SKIP = "skip"


class Start(StrEnum):
    """Where a stream begins, if not at a position or a time."""

    EARLIEST = "earliest"
    LATEST = "latest"


def _option(name: str, takes: str, says: str, uses: str, read: Callable[[str, str], Any], default: Any = None) -> Any:
    about = {"name": name, "takes": takes, "says": says, "uses": uses, "read": read}
    return field(default=default, metadata=about)


# --- Reading values ---


def _text(name: str, value: str) -> str:
    return checks.text(name, value, 4096)


def choice(kind: type[C]) -> Callable[[str, str], C]:
    def read(name: str, value: str) -> C:
        try:
            return kind(value.strip().lower())
        except ValueError:
            raise InvalidInputError(f"{name} must be one of {', '.join(kind)}, not {checks.shown(value)}") from None

    return read


def _whole(least: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        if not (value.strip().isascii() and value.strip().isdecimal()):
            raise InvalidInputError(f"{name} must be a whole number from {least}, not {checks.shown(value)}")
        return checks.whole(name, int(value), least)

    return read


def flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise InvalidInputError(f"{name} must be true or false, not {checks.shown(value)}")
    return value.strip().lower() == "true"


def parse_time(name: str, value: str) -> datetime:
    fix = f"{name} must be a time with its zone, for example 2026-02-15T10:00:00Z, not {checks.shown(value)}"
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidInputError(fix) from None
    if moment.tzinfo is None:
        raise InvalidInputError(fix)
    return moment


def _moment(name: str, value: str) -> Moment:
    if value.strip().isascii() and value.strip().isdecimal():
        return int(value)
    if value.strip().startswith("{"):
        return _positions(name, value)
    try:
        return parse_time(name, value)
    except InvalidInputError:
        raise InvalidInputError(
            f"{name} must be a position, or a time with its zone as 2026-02-15T10:00:00Z, not {checks.shown(value)}"
        ) from None


def _positions(name: str, value: str) -> Mapping[int, int]:
    """Positions of the shards of a ring."""
    try:
        return positions(name, msgspec.json.decode(value, type=dict[str, int]))
    except msgspec.DecodeError:
        raise InvalidInputError(
            f'{name} must name a position for each shard of the ring, as {{"0000": 41, "0001": 7}}, not '
            f"{checks.shown(value)}"
        ) from None


def _start(name: str, value: str) -> Start | Moment:
    if value.strip().lower() in tuple(Start):
        return Start(value.strip().lower())
    try:
        return _moment(name, value)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}; or earliest, or latest") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceOptions:
    """Options of a read, checked.

    >>> SourceOptions.parse({"path": "file:///data/orders", "table": "events", "from": "41"}).start_from
    41
    """

    url: str = _option("path", "URL of a store", "Where the queue is: what `load(url)` is given.", ALL, _text)
    table: Table = _option("table", ", ".join(f"`{table}`" for table in Table), "What to read.", ALL, choice(Table))
    as_of: Moment | None = _option(
        "asOf",
        "position or time",
        "The jobs as they stood then, instead of now. On a ring of shards a time, or the positions of all of them, as "
        '`{"0000": 41, "0001": 7}`; `from`, `to` and `start` the same.',
        "jobs",
        _moment,
    )
    start_from: Moment | None = _option(
        "from",
        "position or time",
        "Events after this position, or from this time on; finished jobs after this position. Without it: all that is "
        "there.",
        "events, archive, attempts",
        _moment,
    )
    upto: Moment | None = _option(
        "to",
        "position or time",
        "Events up to this position, or before this time; finished jobs up to this position. Without it: up to the "
        "last commit.",
        "events, archive, attempts",
        _moment,
    )
    since: datetime | None = _option(
        "since", "time", "Only jobs that finished at this time or later.", "archive, attempts", parse_time
    )
    until: datetime | None = _option(
        "until", "time", "Only jobs that finished before this time.", "archive, attempts", parse_time
    )
    start: Start | Moment = _option(
        "start",
        "`earliest`, `latest`, position or time",
        "Where a stream without a checkpoint begins: with all there is, with what comes from now on, after a position, "
        "or at a time.",
        STREAMS,
        _start,
        Start.EARLIEST,
    )
    rows_max: int | None = _option(
        "maxRowsPerTrigger",
        "number",
        "Rows per batch of a stream, rounded up to a whole commit or object.",
        STREAMS,
        _whole(1),
    )
    bytes_max: int | None = _option(
        "maxBytesPerTrigger",
        "number",
        "Stored bytes per batch of a stream, rounded up to a whole commit or object.",
        STREAMS,
        _whole(1),
    )
    archived: bool = _option(
        "archived",
        "`true`, `false`",
        "For the table events: follow the queue only up to its first finish that is not in the archive yet, so that a "
        "batch of events and the archive up to its end fit together. A queue without a log can be followed too; its "
        "batches have no rows.",
        STREAMS,
        flag,
        False,
    )
    on_gone: OnGone = _option(
        "onGone",
        "`fail`, `skip`",
        "What a stream does that was too slow, so that what it was to read next is deleted: stop and say so, or go on "
        "with what is left and say what was skipped.",
        STREAMS,
        choice(OnGone),
        OnGone.FAIL,
    )
    splits: int | None = _option(
        "splits", "number", "How many tasks read. Without it: up to 16, and more for a large table.", ALL, _whole(1)
    )
    metadata: bool = _option(
        "metadata",
        "`true`, `false`",
        "Adds the columns `_shard`, `_position` and `_object`, which a schema of one's own may name as well.",
        ALL,
        flag,
        False,
    )
    clock_skew: timedelta = _option(
        "clockSkew",
        "span",
        "By how much the clocks of those who write the queue differ at the most. Only used to pass over objects when "
        "events are chosen by time.",
        "events",
        times.span,
        CLOCK_SKEW,
    )
    store: Mapping[str, str] = field(default_factory=dict)
    """Options of the store, without their prefix."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.table.value!r})"  # options of the store may be secrets

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """
        Raises:
            InvalidInputError: an option is unknown, or does not take this value.
        """
        values: dict[str, Any] = {}
        store: dict[str, str] = {}
        if any(name.lower().startswith("option.") for name in given):
            raise InvalidInputError(f"this cannot be a table of the catalogue. {SQL_FIX}")
        for name, value in given.items():
            low = name.lower()
            if low.startswith(STORE_PREFIX):
                store[low.removeprefix(STORE_PREFIX)] = value
                continue
            known = _known(low)
            values[known.name] = known.metadata["read"](known.metadata["name"], value)
        if "url" not in values:
            raise InvalidInputError(f'say where the queue is: .load("s3://bucket/prefix"). {SQL_FIX}')
        if "table" not in values:
            tables = ", ".join(Table)
            raise InvalidInputError(f'say what to read: .option("table", ...) with one of {tables}. {SQL_FIX}')
        _check_uses(values)
        _check_url(values["url"])
        options = cls(**values, store=store)
        options.scan()  # refuse unknown options of the store before anything runs
        return options

    def for_batch(self) -> SourceOptions:
        """Refuses options that only streams have."""
        for one in fields(self):
            if one.metadata.get("uses") == STREAMS and getattr(self, one.name) != one.default:
                raise InvalidInputError(f"{one.metadata['name']} is for streams: readStream has it, read has not")
        return self

    def for_stream(self) -> SourceOptions:
        """Refuses options that only batches have."""
        if self.start_from is not None or self.upto is not None:
            raise InvalidInputError("from and to are for batches: a stream begins at start, and goes on")
        return self

    def scan(self) -> Scan:
        """The scan that these options describe."""
        return Scan(self.url, options=self.store)


def _check_uses(values: Mapping[str, Any]) -> None:
    for one in fields(SourceOptions):
        uses = one.metadata.get("uses", ALL)
        if one.name in values and uses not in (ALL, STREAMS) and values["table"] not in uses.split(", "):
            name, table = one.metadata["name"], values["table"]
            others = [
                other.metadata["name"]
                for other in fields(SourceOptions)
                if table in other.metadata.get("uses", "").split(", ")
            ]
            raise InvalidInputError(f"{name} is for {uses}; the table {table} has {', '.join(others)}")


def about_options() -> list[Mapping[str, Any]]:
    """Name, values, default and meaning of every option, for the reference."""
    return [{**one.metadata, "default": one.default} for one in fields(SourceOptions) if one.metadata]


def _known(low: str) -> Field[Any]:
    names = {one.metadata["name"].lower(): one for one in fields(SourceOptions) if one.metadata}
    if low in names:
        return names[low]
    near = get_close_matches(low, names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]].metadata['name']!r}?" if near else f"there are {', '.join(_names())}"
    raise InvalidInputError(
        f"there is no option {low!r} for reading: {hint} Options of the store begin with {STORE_PREFIX!r}"
    )


def _names() -> list[str]:
    return [one.metadata["name"] for one in fields(SourceOptions) if one.metadata]


def _check_url(url: str) -> None:
    if is_address(url):
        raise InvalidInputError(
            "tables are read from the bucket, not through a broker: load the URL of the store that the broker serves "
            "(s3://, gs://, az:// or file://)"
        )
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise InvalidInputError(
            "memory:// lives in one process, and Spark reads in others: use file:///path or a bucket"
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if any(word in name.lower() for word in SECRET):
            raise InvalidInputError(
                f"{name} does not belong into the URL, which ends up in plans and logs: give it as the option "
                f"{STORE_PREFIX}{name}"
            )
