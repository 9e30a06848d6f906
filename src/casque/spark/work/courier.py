"""One trip to the executors and back. Blocks; called from threads of the driver.

Works on any session, classic or Connect: uses only frames, and tags to interrupt them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from casque.client.job import Job
from casque.clock import Random
from casque.service import Outcome
from casque.spark.parquet import File
from casque.spark.work.calling import BACK, Calling
from casque.spark.work.functions import Functions
from casque.spark.work.parcels import answer_unpacked, packed, pieces
from casque.spark.work.results import ResultsTable

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
    """Jobs that are done without a result: usually most of them."""
    outcomes: Sequence[Outcome]
    """Outcomes of the other jobs."""
    files: Sequence[File] = ()
    """Files of results. They are not part of a table yet."""


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

    def carry(self, jobs: Sequence[Job[bytes]], tag: str) -> Delivery:
        """Run these jobs and return their outcomes.

        Raises:
            TroubleError: some of them were not tried. The handler may have been called for others.
            SparkFailedError: the outcome of all of them is unknown.
        """
        sent = pieces(jobs, self._tasks)
        done: list[Job[bytes]] = []
        outcomes: list[Outcome] = []
        files: list[File] = []
        for number, parcel, written in self._trip([packed(piece) for piece in sent], tag):
            if written is not None:
                files += msgspec.json.decode(written, type=list[File])
            elif parcel:
                outcomes += answer_unpacked(parcel)
            else:
                done += sent[number]
        assert len(done) + len(outcomes) == len(jobs), "a parcel did not come back"
        return Delivery(done, outcomes, files)

    def probe(self, tag: str) -> None:
        """The same trip without a job, to check that executors can be reached and can load the handler.

        Raises:
            TroubleError, SparkFailedError: as above.
        """
        self._trip([packed([])], tag)

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

    def _now(self) -> Calling | Functions:
        if self._results is None or isinstance(self._calling, Functions):
            return self._calling
        return msgspec.structs.replace(self._calling, keeping=self._results.keeping())

    def _trip(self, parcels: list[bytes], tag: str) -> list[tuple[int, bytes | None, str | None]]:
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
            back = frame.mapInArrow(self._now(), BACK).toArrow()
        except failures as error:
            raise SparkFailedError(_gist(error)) from error
        finally:
            tagged[1](tag)
        for trouble in back.column("trouble").drop_null():
            raise TroubleError(trouble.as_py())
        return [(row["number"], row["parcel"], row["files"]) for row in back.to_pylist()]


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
