"""The code that runs on an executor: unpacks a parcel, calls the handler, returns the outcome of each job.

An exception of a handler is the outcome of that job alone. Errors that are not a job's own (a handler that cannot be
loaded here, a bug in this file) are reported separately, so that no job is blamed for them. Processes that die are left
to the driver, which alone can see them.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from casque.service import Outcome, OutcomeKind
from casque.spark.executor import settle_in
from casque.spark.files import File
from casque.spark.work.options import Kind
from casque.spark.work.parcels import answer_packed, jobs_table, pieces, unpacked
from casque.spark.work.results import Keeping
from casque.spark.work.shift import Shift, Shifts, Team, Terms
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
    terms: Terms = Terms()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`: parcels in, parcels out."""
        caller = Caller(self)
        yield from answers(batches, caller, self.terms)
        kept = caller.kept()
        if self.keeping is not None and any(rows.num_rows for rows in kept):
            # The last action of a task. If it fails, no outcome of this task reaches the driver.
            yield _back(files=msgspec.json.encode([self._written(self.keeping, pa.concat_tables(kept))]).decode())

    def on_trip(self, terms: Terms) -> Calling:
        if self.keeping is not None:
            # A task that is repeated writes its rows again, so they count only if the whole task does.
            terms = msgspec.structs.replace(terms, reports=None)
        return msgspec.structs.replace(self, terms=terms)

    def _written(self, keeping: Keeping, rows: pa.Table) -> File:
        return keeping.warehouse.run(lambda store: keeping.write(store, rows))

    def crashed(self, job: Job[Any], error: str, _rng: Random) -> Outcome:
        """Outcome of a job whose process died. The queue decides how long it waits."""
        return Outcome(job.id, job.token, error, how=OutcomeKind.CRASHED)


class Caller:
    """Calls the handler during one task."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._keeping = calling.keeping
        self._rows: list[pa.Table] = []
        self._values: list[tuple[Sequence[JobRecord], list[Any]]] = []

    def kept(self) -> list[pa.Table]:
        """The rows of results of all jobs so far."""
        if self._keeping is None:
            return []
        # Copied, because a handler that outlasts the deadline may still return a value.
        return self._rows + [self._keeping.rows(jobs_table(jobs), list(values)) for jobs, values in self._values]

    def work(self, shift: Shift, jobs: Sequence[JobRecord]) -> None:
        """Call the handler for these jobs.

        Raises:
            Exception: the handler could not be called at all.
        """
        handler = load(self._calling.loading)
        if self._calling.kind is Kind.JOB:
            self._one_by_one(handler, shift, jobs)
            return
        size = self._calling.per_call or max(len(jobs), 1)
        for places in pieces(range(len(jobs)), -(-len(jobs) // size)):
            assert isinstance(places, range)
            if not shift.begin_all(places):
                return
            outcomes, rows = self._many(handler, jobs[places.start : places.stop])
            if rows is not None:
                # Before the outcomes: a row without an outcome is ignored, a missing one would be a lost result.
                self._rows.append(rows)
            shift.outcomes[places.start : places.stop] = outcomes

    def halt(self) -> None:
        """Handlers cannot be interrupted."""

    def close(self) -> None:
        pass

    # --- Handlers of one job ---

    def _one_by_one(self, handler: Callable[[Any], Any], shift: Shift, jobs: Sequence[JobRecord]) -> None:
        codec = codec_for(self._calling.type)
        keeping, concurrency = self._keeping, self._calling.concurrency
        accept = _result if keeping is None else keeping.accept
        values: list[Any] = [None] * len(jobs)
        if keeping is not None:
            self._values.append((jobs, values))
        numbered = iter(range(len(jobs)))  # one `next` at a time, also from several threads

        def end(index: int, error: str | None, value: Any) -> None:
            job = jobs[index]
            if keeping is not None:
                values[index], value = value, None
            shift.outcomes[index] = Outcome(job.spec.id, job.token, error, value)

        def work() -> None:
            begin = shift.begin
            for index in numbered:
                if not begin(index):
                    return
                end(index, *_tried(handler, Job(jobs[index], codec), accept))

        async def work_on_loop() -> None:
            for index in numbered:
                if not shift.begin(index):
                    return
                try:
                    error, value = None, accept(await handler(Job(jobs[index], codec)))
                except (Exception, SystemExit) as raised:  # noqa: BLE001
                    error, value = described(raised), None
                end(index, error, value)

        async def gather() -> None:
            await asyncio.gather(*(work_on_loop() for _ in range(concurrency)))

        if inspect.iscoroutinefunction(handler):
            with asyncio.Runner() as runner:
                runner.run(gather())
        elif concurrency == 1:
            work()
        else:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(jobs)))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    # --- Handlers of many ---

    def _many(self, handler: Callable[[Any], Any], jobs: Sequence[JobRecord]) -> tuple[list[Outcome], pa.Table | None]:
        try:
            table = jobs_table(jobs)
            returned = _as_table(handler(table.to_pandas() if self._calling.kind is Kind.PANDAS else table))
            if returned is None:
                return _outcomes(jobs, [(None, None)] * len(jobs)), None
            places = _places(returned, table)
            errors = _errors(returned, places)
            if self._keeping is None:
                errors, results = _results(returned, places, errors)
                return _outcomes(jobs, zip(errors.to_pylist(), results.to_pylist(), strict=True)), None
            rows = self._keeping.rows_of(table, returned, places, pc.is_null(errors))
            return _outcomes(jobs, [(error, None) for error in errors.to_pylist()]), rows
        except BaseException as error:  # noqa: BLE001  it is these jobs' outcome
            return _outcomes(jobs, [(described(error), None)] * len(jobs)), None


def answers(batches: Iterator[pa.RecordBatch], team: Team, terms: Terms) -> Iterator[pa.RecordBatch]:
    """For each parcel of jobs an answer, or an error."""
    settle_in()
    shifts = Shifts(team, terms)
    try:
        for batch in batches:
            numbers, parcels = batch.column("number").to_pylist(), batch.column("parcel").to_pylist()
            for place, (number, parcel) in enumerate(zip(numbers, parcels, strict=True), 1):
                try:
                    answer = shifts.run(number, unpacked(parcel), behind=numbers[place:])
                except Exception as error:  # noqa: BLE001  the driver gets the error and stops
                    yield _back(number, trouble=described(error))
                else:
                    yield _back(number, parcel=answer_packed(answer))
    finally:
        shifts.close()


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
