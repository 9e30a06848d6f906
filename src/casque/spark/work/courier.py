"""One trip to the executors and back. Blocks; called from threads of the driver.

Works on any session, classic or Connect: uses only frames, and tags to interrupt them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from casque.client.job import Job
from casque.clock import Random
from casque.service import Outcome
from casque.spark.files import File
from casque.spark.work.calling import BACK, Calling
from casque.spark.work.functions import Functions
from casque.spark.work.parcels import answer_unpacked, packed, pieces
from casque.spark.work.reports import Destination, Report, ReportServer
from casque.spark.work.results import ResultsTable
from casque.spark.work.shift import Terms

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TASKS_MIN = 16
_TELLING = re.compile(r"Python worker exited unexpectedly[^.\n]*|ExecutorLostFailure[^\n]{0,200}")


class TroubleError(Exception):
    """The handler was not called, for a reason that is not a job's fault."""


class SparkFailedError(Exception):
    """Spark gave up on the batch: a process died, an executor was lost too often, or the batch was interrupted."""


class Delivery(NamedTuple):
    """The result of one trip."""

    done: Sequence[Job[bytes]]
    """Jobs that are done without a result, or whose outcomes were reported before: usually most of them."""
    outcomes: Sequence[Outcome]
    """Outcomes of the other jobs."""
    files: Sequence[File] = ()
    """Files of results. They are not part of a table yet."""
    running: Sequence[Job[bytes]] = ()
    """Jobs whose handlers had not returned when the time was up."""
    unstarted: Sequence[Job[bytes]] = ()
    """Jobs that were not started before the time was up."""


class Tracking(NamedTuple):
    """When a trip has to be back, and who hears of outcomes on the way."""

    until_ms: int | None = None
    """By the wall clock."""
    server: ReportServer | None = None
    arrived: Callable[[Sequence[Job[bytes]], Sequence[Outcome]], None] | None = None
    """Called on the event loop with jobs that are done, and with outcomes."""
    handed_over: Callable[[Sequence[Job[bytes]]], None] | None = None
    """Called with jobs that wait behind a slow one, and which their task will not start."""


UNTRACKED = Tracking()


class Courier:
    def __init__(
        self,
        spark: SparkSession,
        calling: Calling | Functions,
        *,
        tasks: int | None,
        results: ResultsTable | None = None,
    ) -> None:
        self._spark = spark
        self._context = _context(spark)
        self._calling = calling
        self._results = results
        # With fewer cores Spark runs several parcels in one task. The setting shows the size of the cluster as its
        # operator sees it; Connect does not expose what Spark itself knows.
        self._tasks = tasks or max(TASKS_MIN, int(spark.conf.get("spark.sql.shuffle.partitions") or TASKS_MIN))

    @property
    def context(self) -> SparkContext | None:
        """None on Connect."""
        return self._context

    def carry(self, jobs: Sequence[Job[bytes]], tag: str, tracking: Tracking = UNTRACKED) -> Delivery:
        """Have executors run these jobs, and return their outcomes.

        Raises:
            TroubleError: some of them were not tried. The handler may have been called for others.
            SparkFailedError: the outcome of all that were not reported is unknown.
        """
        sent = pieces(jobs, self._tasks)
        with _reports(sent, tag, tracking) as destination:
            back = self._trip([packed(piece) for piece in sent], tag, Terms(tracking.until_ms, destination))
        done: list[Job[bytes]] = []
        outcomes: list[Outcome] = []
        files: list[File] = []
        running: list[Job[bytes]] = []
        unstarted: list[Job[bytes]] = []
        missing = set(range(len(sent)))
        for number, parcel, written in back:
            if written is not None:
                files += msgspec.json.decode(written, type=list[File])
                continue
            missing.discard(number)
            if not parcel:
                done += sent[number]
                continue
            answer = answer_unpacked(parcel)
            outcomes += answer.outcomes
            running += [sent[number][index] for index in answer.running]
            unstarted += [sent[number][index] for index in answer.unstarted]
        assert not missing, "a parcel did not come back"
        return Delivery(done, outcomes, files, running, unstarted)

    def probe(self, tag: str) -> None:
        """The same trip without a job, to check that executors can be reached and can load the handler.

        Raises:
            TroubleError, SparkFailedError: as above.
        """
        self._trip([packed([])], tag, Terms())

    def died(self, jobs: Sequence[Job[bytes]], why: str, rng: Random) -> Delivery:
        """The outcome of jobs whose process died."""
        said = f"WorkerDied: the Python process on the executor died while it ran this job alone ({why})"
        return Delivery([], [self._calling.crashed(job, said, rng) for job in jobs])

    def interrupt(self, tag: str) -> None:
        """Interrupt everything under this tag; its callers get a SparkFailedError."""
        if self._context is not None:
            self._context.cancelJobsWithTag(tag)
        else:
            self._spark.interruptTag(tag)

    def _now(self, terms: Terms) -> Calling | Functions:
        calling = self._calling
        if self._results is not None and isinstance(calling, Calling):
            calling = msgspec.structs.replace(calling, keeping=self._results.keeping())
        return calling.on_trip(terms)

    def _trip(self, parcels: list[bytes], tag: str, terms: Terms) -> list[tuple[int, bytes | None, str | None]]:
        """Returns the number of a parcel and its outcomes, or files that were written."""
        failures = _failures()
        # The tags of a classic session do not reach the JVM thread that collects a frame as Arrow.
        tagged = (
            (self._context.addJobTag, self._context.removeJobTag)
            if self._context is not None
            else (self._spark.addTag, self._spark.removeTag)
        )
        tagged[0](tag)
        try:
            numbers = pa.array(range(len(parcels)), pa.int32())
            frame = self._spark.createDataFrame(pa.table({"number": numbers, "parcel": pa.array(parcels, pa.binary())}))
            back = frame.mapInArrow(self._now(terms), BACK).toArrow()
        except failures as error:
            raise SparkFailedError(_gist(error)) from error
        finally:
            tagged[1](tag)
        for trouble in back.column("trouble").drop_null():
            raise TroubleError(trouble.as_py())
        return [(row["number"], row["parcel"], row["files"]) for row in back.to_pylist()]


@contextmanager
def _reports(sent: Sequence[Sequence[Job[bytes]]], tag: str, tracking: Tracking) -> Iterator[Destination | None]:
    """Where the tasks of this trip send their reports, if they can."""
    arrived, handed_over = tracking.arrived, tracking.handed_over
    if tracking.server is None or arrived is None or handed_over is None:
        yield None
        return

    def take(report: Report) -> None:
        piece = sent[report.number]
        arrived([job for start, stop in report.done for job in piece[start:stop]], report.outcomes)
        handed_over([job for start, stop in report.handed_over for job in piece[start:stop]])

    # The pieces of a batch that is being split travel at the same time, under one tag.
    with tracking.server.expect(f"{tag}-{id(sent)}", take) as destination:
        yield destination


def _context(spark: SparkSession) -> SparkContext | None:
    """None on Connect."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext
    except PySparkAttributeError:
        return None


def _failures() -> tuple[type[BaseException], ...]:
    """Spark's exceptions. A Connect session may have no Py4J beside it."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JError


def _gist(error: BaseException) -> str:
    """The line with the message, out of pages of stack trace."""
    said = str(error)
    found = _TELLING.search(said)
    first = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    return found[0].strip() if found else first[:300]
