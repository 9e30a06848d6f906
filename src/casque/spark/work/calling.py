"""What runs on an executor: unpacks a parcel, calls the handler, says what became of each job.

Whatever a handler raises is that job's outcome and nobody else's. Trouble that is not a job's own (a handler that
cannot be loaded here, a mistake in this file) is told apart, so that no job is blamed for it. What is left are
processes that die, which only the driver can see.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from casque import checks
from casque.client.job import Job
from casque.client.payloads import codec_for
from casque.errors import InvalidInputError
from casque.spark.work.options import Kind
from casque.spark.work.parcels import OUTCOMES, jobs_of, outcomes_of, packed, pieces, unpacked

BACK = "parcel binary, trouble string"
"""What comes back for each parcel: the outcomes, or why there are none."""
FRAMES_MAX = 8


class Loading(msgspec.Struct, frozen=True):
    """Where an executor gets the handler from: a module that it has, or the very code, pickled on the driver."""

    name: str | None = None
    code: bytes | None = None


class Calling(msgspec.Struct, frozen=True):
    """One way to call one handler; travels to the executors with every batch."""

    loading: Loading
    kind: Kind = Kind.JOB
    per_call: int | None = None
    concurrency: int = 1
    type: Any = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for cell in batch.column("parcel"):
                outcomes, trouble = self._answer(cell)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([outcomes], pa.binary()), pa.array([trouble], pa.string())], names=["parcel", "trouble"]
                )

    def _answer(self, cell: pa.BinaryScalar) -> tuple[bytes | None, str | None]:
        try:
            return packed(self.outcomes(unpacked(cell))), None
        except Exception as error:  # noqa: BLE001  anything here is told to the driver, which stops
            return None, described(error)

    def outcomes(self, jobs: pa.Table) -> pa.Table:
        """What the handler makes of these jobs.

        Raises:
            Exception: whatever kept the handler from being called at all.
        """
        handler = load(self.loading)
        if self.kind is Kind.JOB:
            errors, results = self._one_by_one(handler, jobs)
            return outcomes_of(jobs, errors, results)
        size = self.per_call or max(jobs.num_rows, 1)
        chunks = pieces(jobs, -(-jobs.num_rows // size))
        answered = [self._many(handler, chunk) for chunk in chunks]
        return pa.concat_tables(answered) if answered else OUTCOMES.empty_table()

    # --- Handlers of one job ---

    def _one_by_one(self, handler: Callable[[Any], Any], jobs: pa.Table) -> tuple[list[str | None], list[bytes | None]]:
        given = jobs_of(jobs, codec_for(self.type))
        if inspect.iscoroutinefunction(handler):
            with asyncio.Runner() as runner:
                done = runner.run(_gathered(handler, given, self.concurrency))
        elif self.concurrency > 1:
            with ThreadPoolExecutor(self.concurrency) as threads:
                done = list(threads.map(lambda job: _tried(handler, job), given))
        else:
            done = [_tried(handler, job) for job in given]
        return [error for error, _ in done], [result for _, result in done]

    # --- Handlers of many ---

    def _many(self, handler: Callable[[Any], Any], jobs: pa.Table) -> pa.Table:
        try:
            returned = handler(jobs.to_pandas() if self.kind is Kind.PANDAS else jobs)
            errors, results = _by_job(_as_table(returned), jobs)
        except BaseException as error:  # noqa: BLE001  it is these jobs' outcome
            return outcomes_of(jobs, [described(error)] * jobs.num_rows, [None] * jobs.num_rows)
        return outcomes_of(jobs, errors, results)


@lru_cache(maxsize=8)
def load(loading: Loading) -> Callable[[Any], Any]:
    """The handler. Loaded once in a process, so that what its module keeps open stays open between batches."""
    if loading.code is not None:
        return _callable(pickle.loads(loading.code))  # noqa: S301  the driver's own
    assert loading.name is not None
    return by_name(loading.name)


def by_name(name: str) -> Callable[[Any], Any]:
    """`package.module:function`. Raises InvalidInputError, which says what is wrong with it."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidInputError(f"a handler is written module:function, for example mail.jobs:send, not {name!r}")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"there is no handler {name!r}: {error}. Is its module installed here?") from error
    return _callable(found)


def described(error: BaseException) -> str:
    """Its class and message first, then where it came from, the innermost frames."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or frames
    where = "".join(traceback.format_list(own[-FRAMES_MAX:])).rstrip()
    said = f"{type(error).__name__}: {error}"
    return str(checks.error_text(f"{said}\n{where}" if where else said))


def _tried(handler: Callable[[Job[Any]], Any], job: Job[Any]) -> tuple[str | None, bytes | None]:
    try:
        return None, _result(handler(job))
    except BaseException as error:  # noqa: BLE001  it is this job's outcome, SystemExit as well
        return described(error), None


async def _gathered(
    handler: Callable[[Job[Any]], Awaitable[Any]], jobs: Iterator[Job[Any]], concurrency: int
) -> list[tuple[str | None, bytes | None]]:
    """At most so many at once, each started when another one is over."""
    told: dict[int, tuple[str | None, bytes | None]] = {}
    numbered = enumerate(jobs)

    async def work() -> None:
        for number, job in numbered:
            try:
                told[number] = None, _result(await handler(job))
            except (Exception, SystemExit) as error:  # noqa: BLE001
                told[number] = described(error), None

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [told[number] for number in range(len(told))]


def _result(returned: Any) -> bytes | None:
    if returned is None or type(returned) is bytes:
        return checks.result(returned)
    raise InvalidInputError(
        f"the handler returned {type(returned).__name__}: return bytes, which go to the archive, or None"
    )


def _as_table(returned: Any) -> pa.Table | None:
    if returned is None or isinstance(returned, pa.Table):
        return returned
    if isinstance(returned, pa.RecordBatch):
        return pa.Table.from_batches([returned])
    if type(returned).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(returned, preserve_index=False)
    raise InvalidInputError(
        f"the handler returned {type(returned).__name__}: return None if all are done, or a table with the columns id, "
        "error (null where done) and result"
    )


def _by_job(returned: pa.Table | None, jobs: pa.Table) -> tuple[Any, Any]:
    """The handler's rows in the order of the jobs. A job that it says nothing about has not been done."""
    count = jobs.num_rows
    if returned is None:
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())
    if "id" not in returned.column_names:
        raise InvalidInputError(f"the handler's table has no column id, only {', '.join(returned.column_names)}")
    ids = returned.column("id").cast(pa.string()).combine_chunks()
    if pc.count_distinct(ids).as_py() != len(ids):
        raise InvalidInputError("the handler's table has more than one row for a job")
    given = jobs.column("id").combine_chunks()
    if not pc.all(pc.is_in(ids, value_set=given)).as_py() and len(ids):
        raise InvalidInputError("the handler's table has rows for jobs that it was not given")
    places = pc.index_in(given, value_set=ids)
    errors = _column(returned, "error", pa.string()).take(places)
    silent = pc.is_null(places)
    errors = pc.if_else(silent, pa.scalar("the handler returned no row for this job"), errors)
    results = _column(returned, "result", pa.binary()).take(places)
    too_large = pc.greater(pc.fill_null(pc.binary_length(results), 0), checks.RESULT_MAX)
    if pc.any(too_large).as_py():
        errors = pc.if_else(too_large, pa.scalar(f"its result is larger than {checks.RESULT_MAX:,} bytes"), errors)
        results = pc.if_else(too_large, pa.scalar(None, pa.binary()), results)
    return errors, results


def _column(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    return table.column(name).cast(kind).combine_chunks()


def _callable(found: Any) -> Callable[[Any], Any]:
    if not callable(found):
        raise InvalidInputError(f"the handler must be a function, not {type(found).__name__}")
    return found  # type: ignore[no-any-return]
