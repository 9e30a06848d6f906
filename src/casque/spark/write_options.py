"""Options of a write: `df.write.format("casque").option(...)`.

Spark passes options as text with names in lower case. An unknown one is refused: a misspelt `txnId` would otherwise
enqueue everything twice. Options may be secrets, so values are never shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from casque import checks
from casque.client.connecting import ClientTlsFiles
from casque.errors import InvalidInputError
from casque.fields import GAINED, Field
from casque.spark.options import STORE_PREFIX, choice, flag, parse_time
from casque.spark.via import Via
from casque.storage.url import is_address, open_store

SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark reads itself and passes on all the same."""
INSERT_FIX = (
    "For INSERT INTO make a view of the columns to insert, without the option table: "
    "CREATE TEMPORARY VIEW name (entrypoint STRING, payload STRING) USING casque OPTIONS (path '...')"
)
ROWS_MAX = 50_000
BYTES_MAX = 32 * 1024 * 1024


class PayloadFrom(StrEnum):
    """Source of payloads."""

    COLUMN = "column"
    JSON = "json"


class OnKnown(StrEnum):
    """How to treat a row whose id belongs to a job in the queue, or to an earlier row."""

    FAIL = "fail"
    SKIP = "skip"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a write, checked. Times are milliseconds."""

    url: str
    store: dict[str, str] = msgspec.field(default_factory=dict)
    via: Via = Via.AUTO
    broker: str | None = None
    token: str | None = None
    tls: ClientTlsFiles | None = None
    txn_id: str | None = None
    txn_version: int | None = None
    writer_id: str | None = None
    id_from: tuple[str, ...] = ()
    on_known: OnKnown | None = None
    payload: PayloadFrom = PayloadFrom.COLUMN
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX
    constants: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values by the name of the column that they replace."""

    @property
    def skips_known(self) -> bool:
        """True for derived ids, where the same row again is the same job; given ids are meant to be new."""
        return self.on_known is OnKnown.SKIP or (self.on_known is None and bool(self.id_from))

    def __repr__(self) -> str:
        return f"WriteOptions({self.url.partition('?')[0]!r})"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """
        Raises:
            InvalidInputError: an option is unknown, or does not take this value.
        """
        values: dict[str, str] = {}
        store: dict[str, str] = {}
        for name, value in given.items():
            low = name.lower()
            if low in SPARKS_OWN:
                continue
            if low == "table":
                raise InvalidInputError(
                    f"the table {checks.shown(value)} is for reading: jobs are added to the queue. {INSERT_FIX}"
                )
            if low.startswith("option."):
                raise InvalidInputError(
                    f"this cannot be a table of the catalogue: Spark drops its options. {INSERT_FIX}"
                )
            if low.startswith(STORE_PREFIX):
                store[low.removeprefix(STORE_PREFIX)] = value
            else:
                values[_known(low)] = value
        if "path" not in values:
            raise InvalidInputError(f'say where the queue is: .save("s3://bucket/prefix"). {INSERT_FIX}')
        _check_url(values["path"], store)
        return cls(
            url=values["path"],
            store=store,
            via=choice(Via)("via", values.get("via", Via.AUTO)),
            broker=_broker(values.get("broker")),
            token=values.get("token"),
            tls=_tls(values),
            txn_id=_named("txnId", values.get("txnId")),
            txn_version=_whole("txnVersion", values.get("txnVersion"), 0),
            writer_id=_named("writerId", values.get("writerId")),
            id_from=_list(values.get("idFrom")),
            on_known=choice(OnKnown)("onKnown", values["onKnown"]) if "onKnown" in values else None,
            payload=choice(PayloadFrom)("payload", values.get("payload", PayloadFrom.COLUMN)),
            rows_max=_whole("rowsPerObject", values.get("rowsPerObject"), 1, 100_000) or ROWS_MAX,
            bytes_max=_whole("bytesPerObject", values.get("bytesPerObject"), 1024, BYTES_MAX) or BYTES_MAX,
            constants={name: read(values[name]) for name, read in _CONSTANTS.items() if name in values},
        )

    def for_batch(self) -> WriteOptions:
        """Refuses options that only streams have."""
        if self.writer_id is not None:
            raise InvalidInputError("writerId is for streams; a batch has txnId and txnVersion")
        if (self.txn_id is None) != (self.txn_version is None):
            raise InvalidInputError(
                "txnId and txnVersion go together: which writer this is, and the number of this write of it, which "
                "must be greater than that of the one before"
            )
        return self

    def for_stream(self) -> WriteOptions:
        """Refuses options that only batches have."""
        if self.txn_id is not None or self.txn_version is not None:
            raise InvalidInputError(
                "txnId and txnVersion are for batches; a stream has writerId, and its batches numbers"
            )
        return self


# --- Reading values ---


def _check_url(url: str, store: Mapping[str, str]) -> None:
    if is_address(url):
        raise InvalidInputError(
            "tasks stage jobs in the bucket: save to the URL of the store that the broker serves, and name the broker "
            "with the option broker if it is not found through the bucket"
        )
    if urlsplit(url).scheme == "memory":
        raise InvalidInputError(
            "memory:// lives in one process, and Spark writes in others: use file:///path or a bucket"
        )
    open_store(url, options=store)  # refuse unknown options of the store before anything runs


def _named(option: str, value: str | None) -> str | None:
    return None if value is None else checks.name(option, value, 128)


def _whole(option: str, value: str | None, least: int, most: int = 2**63 - 1) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        raise InvalidInputError(f"{option} must be a whole number, not {checks.shown(value)}") from None
    return checks.whole(option, number, least, most)


def _list(value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InvalidInputError("idFrom must name columns, with commas between them and none twice: idFrom=day,order")
    return names


def _broker(value: str | None) -> str | None:
    if value is not None and not is_address(value):
        raise InvalidInputError(
            "broker must be an address, for example grpc://host:7700, or several: grpc://a:7700,b:7700"
        )
    return value


def _tls(values: Mapping[str, str]) -> ClientTlsFiles | None:
    given = {field: values.get(option) for field, option in _TLS.items()}
    return ClientTlsFiles(**given) if any(given.values()) else None


def _headers(value: str) -> dict[str, str]:
    try:
        read = msgspec.json.decode(value, type=dict[str, str])
    except msgspec.DecodeError:
        raise InvalidInputError('headers must be a JSON object of texts, for example {"trace":"abc"}') from None
    return checks.few_headers(read)


_CONSTANTS: dict[str, Callable[[str], Any]] = {
    "entrypoint": checks.entrypoint,
    "priority": lambda value: _whole("priority", value, -(2**63)),
    "zone": lambda value: checks.name("zone", value, checks.NAME_MAX),
    "run_at": lambda value: checks.moment_ms("run_at", parse_time("run_at", value)),
    "headers": _headers,
    "max_attempts": lambda value: _whole("max_attempts", value, 1),
    "max_crashes": lambda value: _whole("max_crashes", value, 1),
    "fifo": lambda value: flag("fifo", value),
}
_READERS: dict[str, Callable[[str, str], Any]] = {
    "int": lambda name, value: _whole(name, value, -(2**63)),
    "bigint": lambda name, value: _whole(name, value, -(2**63)),
    "string": lambda _name, value: value,
    "boolean": flag,
    "array<string>": lambda _name, value: tuple(part.strip() for part in value.split(",")),
}


def _gained(field: Field) -> Callable[[str], Any]:
    read, check = _READERS[field.sql or ""], field.check
    assert check is not None
    return lambda value: check(read(field.name, value))


_CONSTANTS |= {field.name: _gained(field) for field in GAINED}
_TLS = {"ca": "tlsCa", "cert": "tlsCert", "key": "tlsKey", "server_name": "tlsServerName"}


class About(msgspec.Struct, frozen=True):
    """An option, for the reference."""

    takes: str
    says: str
    uses: str = "all"
    default: str = ""


_TAKES = {
    "int": "number",
    "bigint": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "array<string>": "texts with commas",
}
ABOUT = {
    "path": About("URL of a store", "Where the queue is: what `save(url)` and `start(url)` are given."),
    "store.NAME": About("text", "An option of the store, for example `store.region`."),
    "entrypoint": About("text", "For all rows, in place of a column."),
    "priority": About("number", "For all rows, in place of a column."),
    "zone": About("text", "For all rows, in place of a column."),
    "run_at": About("time with its zone", "For all rows, in place of a column."),
    "headers": About("JSON object of texts", "For all rows, in place of a column."),
    "max_attempts": About("number", "For all rows, in place of a column."),
    "max_crashes": About("number", "For all rows, in place of a column."),
    "fifo": About("`true`, `false`", "For all rows, in place of a column."),
    **{field.name: About(_TAKES[field.sql or ""], "For all rows, in place of a column.") for field in GAINED},
    "payload": About(
        "`column`, `json`",
        "`column`: there is a column `payload`. `json`: all columns that are no field of a job, as an object.",
        default="`column`",
    ),
    "idFrom": About("columns with commas", "Columns whose values, with the entrypoint, make the id."),
    "onKnown": About(
        "`fail`, `skip`", "What becomes of a row whose id is in the queue.", default="`fail`; with `idFrom`: `skip`"
    ),
    "txnId": About("text", "Which writer this is; needs `txnVersion`.", "batches"),
    "txnVersion": About(
        "number", "The number of this write. The same or a smaller one of a `txnId` again writes nothing.", "batches"
    ),
    "writerId": About("text", "Which writer this is, if not the query. Belongs to one checkpoint.", "streams"),
    "via": About(
        "`auto`, `embedded`, `broker`",
        "Who commits: the broker that leads the queue if one does and else the driver, the driver, or a broker.",
        default="`auto`",
    ),
    "broker": About("address", "Where brokers are, `grpc://host:port`, if not where the bucket says."),
    "token": About("text", "The broker's token.", default="the driver's `CASQUE_TOKEN`"),
    "tlsCa": About("file", "The authorities that vouch for brokers."),
    "tlsCert": About("file", "The client's certificate."),
    "tlsKey": About("file", "Its key."),
    "tlsServerName": About("text", "What the broker's certificate says, if that is not the name in its address."),
    "rowsPerObject": About("number", "Rows in one staged object at the most.", default=f"{ROWS_MAX:,}"),
    "bytesPerObject": About("number", "Bytes of rows in one staged object, about.", default=f"{BYTES_MAX:,}"),
}
"""Every option, for the reference."""
_NAMES = {name.lower(): name for name in ABOUT if not name.startswith(STORE_PREFIX)}


def _known(low: str) -> str:
    if low in _NAMES:
        return _NAMES[low]
    near = difflib.get_close_matches(low, _NAMES, n=1)
    meant = f"; did you mean {_NAMES[near[0]]}?" if near else "."
    raise InvalidInputError(
        f"there is no option {low!r} for writing{meant} Options of the store begin with {STORE_PREFIX!r}"
    )
