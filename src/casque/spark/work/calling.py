"""The code that runs on an executor: unpacks a parcel, calls the handler, returns the outcome of each job.

An exception of a handler is the outcome of that job alone. Errors that are not a job's own (a handler that cannot be
loaded here, a bug in this file) are reported separately, so that no job is blamed for them. Processes that die are left
to the driver, which alone can see them.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from casque import checks
from casque.client.job import Job
from casque.client.payloads import codec_for
from casque.clock import Random
from casque.errors import InvalidInputError
from casque.service import Outcome
from casque.spark.executor import settle_in
from casque.spark.parquet import File
from casque.spark.work.options import Kind
from casque.spark.work.parcels import answer_packed, jobs_table, pieces, unpacked
from casque.spark.work.results import Keeping
from casque.types import JobRecord
from casque.worker import failures
from casque.worker.importing import import_object

BACK = "number int, parcel binary, trouble string, files string"
"""The answer for each parcel: its outcomes, or an error; and the files of results that were written."""
_BACK = pa.schema([("number", pa.int32()), ("parcel", pa.binary()), ("trouble", pa.string()), ("files", pa.string())])


class Loading(msgspec.Struct, frozen=True):
    """The source of the handler on an executor: an installed module, or its code, pickled on the driver."""

    name: str | None = None
    code: bytes | None = None


class Calling(msgspec.Struct, frozen=True):
    """One handler and how to call it; sent to the executors with every batch."""

    loading: Loading
    kind: Kind = Kind.JOB
    per_call: int | None = None
    concurrency: int = 1
    type: Any = None
    keeping: Keeping | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`: parcels in, parcels out."""
        kept: list[pa.Table] = []

        def answer(jobs: list[JobRecord]) -> list[Outcome]:
            outcomes, rows = self.answered(jobs)
            kept.extend(rows)
            return outcomes

        yield from answers(batches, answer)
        if self.keeping is not None and any(rows.num_rows for rows in kept):
            # The last action of a task. If it fails, no outcome of this task reaches the driver.
            yield _back(files=msgspec.json.encode([self._written(self.keeping, pa.concat_tables(kept))]).decode())

    def _written(self, keeping: Keeping, rows: pa.Table) -> File:
        return keeping.writer.store_ref.run(lambda store: keeping.write(store, rows))

    def answered(self, jobs: Sequence[JobRecord]) -> tuple[list[Outcome], list[pa.Table]]:
        """Call the handler for these jobs; returns the outcomes, in order, and rows of results to keep.

        Raises:
            Exception: the handler could not be called at all.
        """
        handler = load(self.loading)
        if self.kind is Kind.JOB:
            return self._one_by_one(handler, jobs)
        size = self.per_call or max(len(jobs), 1)
        pairs = [self._many(handler, chunk) for chunk in pieces(jobs, -(-len(jobs) // size))]
        return [one for outcomes, _ in pairs for one in outcomes], [rows for _, several in pairs for rows in several]

    def crashed(self, job: Job[Any], error: str, _rng: Random) -> Outcome:
        """Outcome of a job whose process died. The queue decides how long it waits."""
        return Outcome(job.id, job.token, error, crashed=True)

    # --- Handlers of one job ---

    def _one_by_one(
        self, handler: Callable[[Any], Any], jobs: Sequence[JobRecord]
    ) -> tuple[list[Outcome], list[pa.Table]]:
        codec = codec_for(self.type)
        given = (Job(job, codec) for job in jobs)
        accept = _result if self.keeping is None else self.keeping.accept
        if inspect.iscoroutinefunction(handler):
            with asyncio.Runner() as runner:
                done = runner.run(_gathered(handler, given, accept, self.concurrency))
        elif self.concurrency > 1:
            with ThreadPoolExecutor(self.concurrency) as threads:
                done = list(threads.map(lambda job: _tried(handler, job, accept), given))
        else:
            done = [_tried(handler, job, accept) for job in given]
        if self.keeping is None:
            return _outcomes(jobs, done), []
        rows = self.keeping.rows(jobs_table(jobs), [value for _, value in done])
        return _outcomes(jobs, [(error, None) for error, _ in done]), [rows]

    # --- Handlers of many ---

    def _many(self, handler: Callable[[Any], Any], jobs: Sequence[JobRecord]) -> tuple[list[Outcome], list[pa.Table]]:
        try:
            table = jobs_table(jobs)
            returned = _as_table(handler(table.to_pandas() if self.kind is Kind.PANDAS else table))
            if returned is None:
                return _outcomes(jobs, [(None, None)] * len(jobs)), []
            places = _places(returned, table)
            errors = _errors(returned, places)
            if self.keeping is None:
                errors, results = _results(returned, places, errors)
                return _outcomes(jobs, zip(errors.to_pylist(), results.to_pylist(), strict=True)), []
            rows = self.keeping.rows_of(table, returned, places, pc.is_null(errors))
            return _outcomes(jobs, [(error, None) for error in errors.to_pylist()]), [rows]
        except BaseException as error:  # noqa: BLE001  it is these jobs' outcome
            return _outcomes(jobs, [(described(error), None)] * len(jobs)), []


def answers(
    batches: Iterator[pa.RecordBatch], answer: Callable[[list[JobRecord]], list[Outcome]]
) -> Iterator[pa.RecordBatch]:
    """For each parcel of jobs a parcel of outcomes, or an error."""
    settle_in()
    for batch in batches:
        numbers, parcels = batch.column("number").to_pylist(), batch.column("parcel").to_pylist()
        for number, parcel in zip(numbers, parcels, strict=True):
            try:
                outcomes = answer(unpacked(parcel))
            except Exception as error:  # noqa: BLE001  the driver gets the error and stops
                yield _back(number, trouble=described(error))
            else:
                yield _back(number, parcel=answer_packed(outcomes))


@lru_cache(maxsize=8)
def load(loading: Loading) -> Callable[[Any], Any]:
    """The handler. Loaded once per process, so that connections of its module stay open between batches."""
    if loading.code is not None:
        return _callable(pickle.loads(loading.code))  # noqa: S301  the driver's own
    assert loading.name is not None
    return by_name(loading.name)


def by_name(name: str) -> Callable[[Any], Any]:
    """Import `package.module:function`. Raises InvalidInputError, which says what is wrong with the name."""
    return _callable(import_object(name, what="a handler", form="module:function", example="mail.jobs:send"))


def described(error: BaseException) -> str:
    return failures.described(error, caller=__file__)


def _back(
    number: int | None = None, *, parcel: bytes | None = None, trouble: str | None = None, files: str | None = None
) -> pa.RecordBatch:
    row = {"number": number, "parcel": parcel, "trouble": trouble, "files": files}
    return pa.RecordBatch.from_pylist([row], schema=_BACK)


def _outcomes(jobs: Sequence[JobRecord], ends: Iterable[tuple[str | None, bytes | None]]) -> list[Outcome]:
    """Done, or failed."""
    return [Outcome(job.spec.id, job.token, error, result) for job, (error, result) in zip(jobs, ends, strict=True)]


def _tried(handler: Callable[[Job[Any]], Any], job: Job[Any], accept: Callable[[Any], Any]) -> tuple[str | None, Any]:
    try:
        return None, accept(handler(job))
    except BaseException as error:  # noqa: BLE001  it is this job's outcome, SystemExit as well
        return described(error), None


async def _gathered(
    handler: Callable[[Job[Any]], Awaitable[Any]],
    jobs: Iterator[Job[Any]],
    accept: Callable[[Any], Any],
    concurrency: int,
) -> list[tuple[str | None, Any]]:
    """Run at most `concurrency` at once; each starts when another one ends."""
    found: dict[int, tuple[str | None, Any]] = {}
    numbered = enumerate(jobs)

    async def work() -> None:
        for number, job in numbered:
            try:
                found[number] = None, accept(await handler(job))
            except (Exception, SystemExit) as error:  # noqa: BLE001
                found[number] = described(error), None

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [found[number] for number in range(len(found))]


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


def _places(returned: pa.Table, jobs: pa.Table) -> Any:
    """The row of each job in the handler's table; null if it has none."""
    if "id" not in returned.column_names:
        raise InvalidInputError(f"the handler's table has no column id, only {', '.join(returned.column_names)}")
    ids = returned.column("id").cast(pa.string()).combine_chunks()
    if pc.count_distinct(ids).as_py() != len(ids):
        raise InvalidInputError("the handler's table has more than one row for a job")
    given = jobs.column("id").combine_chunks()
    if not pc.all(pc.is_in(ids, value_set=given)).as_py() and len(ids):
        raise InvalidInputError("the handler's table has rows for jobs that it was not given")
    return pc.index_in(given, value_set=ids)


def _errors(returned: pa.Table, places: Any) -> Any:
    """A job without a row in the handler's table has failed."""
    silent = pa.scalar("the handler returned no row for this job")
    return pc.if_else(pc.is_null(places), silent, _column(returned, "error", pa.string()).take(places))


def _results(returned: pa.Table, places: Any, errors: Any) -> tuple[Any, Any]:
    """Errors and results for the archive; a failed job has no result."""
    results = _column(returned, "result", pa.binary()).take(places)
    too_large = pc.greater(pc.fill_null(pc.binary_length(results), 0), checks.RESULT_MAX)
    if pc.any(too_large).as_py():
        errors = pc.if_else(too_large, pa.scalar(f"its result is larger than {checks.RESULT_MAX:,} bytes"), errors)
    return errors, pc.if_else(pc.is_null(errors), results, pa.scalar(None, pa.binary()))


def _column(table: pa.Table, name: str, kind: pa.DataType) -> Any:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    return table.column(name).cast(kind).combine_chunks()


def _callable(found: Any) -> Callable[[Any], Any]:
    if not callable(found):
        raise InvalidInputError(f"the handler must be a function, not {type(found).__name__}")
    return found  # type: ignore[no-any-return]
