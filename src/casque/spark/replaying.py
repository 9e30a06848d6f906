"""Replays finished jobs: enqueues again the jobs that a filter selects from the archive.

The archive is read as a table and the jobs are written as one: atomically, and once for each name of a replay, however
often it runs. New jobs have new ids, derived from the old ones, so they are not mistaken for the originals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.fields import GAINED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1


class Selected(msgspec.Struct, frozen=True):
    """The jobs found for one entrypoint and final state."""

    entrypoint: str
    state: str
    jobs: int
    without_payload: int = 0
    """Jobs among these whose payload was in an object of its own and was deleted with them."""


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay."""

    txn_id: str
    """The name under which the queue remembers it: a second replay with this name enqueues nothing."""
    selected: tuple[Selected, ...]
    written: bool
    """False for a dry run, and if there was nothing to enqueue."""

    @property
    def jobs(self) -> int:
        """Number of jobs that can be enqueued again."""
        return sum(one.jobs for one in self.selected) - self.without_payload

    @property
    def without_payload(self) -> int:
        return sum(one.without_payload for one in self.selected)


def replay(
    spark: SparkSession,
    url: str,
    where: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    into: str | None = None,
    entrypoint: str | None = None,
    max_attempts: int | None = None,
    txn_id: str | None = None,
    skip_missing_payloads: bool = False,
    dry_run: bool = False,
    via: str = "auto",
    options: Mapping[str, str] | None = None,
    into_options: Mapping[str, str] | None = None,
) -> Replayed:
    """Enqueue again the jobs that `where`, an SQL condition on the columns of the archive, selects.

        replay(spark, url, "state = 'dead' AND entrypoint = 'mail' AND error LIKE 'TimeoutError%'")

    `since` and `until` limit when jobs finished; only the objects of those hours are read. `into` is another queue,
    `entrypoint` another handler. All that its producer set, except its time, is as in the old job, and the new one
    starts with no attempts; a row whose key belongs to an unfinished job is skipped.

    The whole replay is one commit, remembered under `txn_id`: run twice, it enqueues once. The default name is derived
    from the arguments, so the same call is the same replay; to repeat it on purpose, give another name.

    Raises:
        InvalidInputError: the filter is invalid; or it selects jobs whose payloads are gone, and
            `skip_missing_payloads` is not set. Nothing was enqueued.
    """
    if not where.strip():
        raise InvalidInputError("where must be an SQL condition, for example state = 'dead'; 'true' takes everything")
    name = txn_id or _derived(url, where, since, until, into, entrypoint, max_attempts)
    archive = _archive(spark, url, where, since, until, options)
    selected = _counted(archive)
    found = Replayed(checks.name("txn_id", name, checks.NAME_MAX), selected, False)
    if dry_run or not found.jobs:
        return found
    if found.without_payload and not skip_missing_payloads:
        raise InvalidInputError(
            f"{found.without_payload} of the selected jobs had payloads in objects of their own, which were deleted "
            "with them, so they cannot be enqueued again; nothing was. Filter on `payload IS NOT NULL`, or give "
            "skip_missing_payloads=True"
        )
    jobs = _jobs(archive, name, entrypoint, max_attempts)
    writer = jobs.write.format("casque").mode("append").options(txnId=name, txnVersion=VERSION, via=via)
    given = options if into is None else into_options
    for option, value in (given or {}).items():
        writer = writer.option(f"store.{option}", value)
    writer.save(url if into is None else into)
    return msgspec.structs.replace(found, written=True)


def _archive(
    spark: SparkSession,
    url: str,
    where: str,
    since: datetime | None,
    until: datetime | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    from pyspark.errors import PySparkException

    from casque.spark.source import register

    register(spark)
    reader = spark.read.format("casque").option("table", "archive")
    for option, value in (options or {}).items():
        reader = reader.option(f"store.{option}", value)
    for option, moment in (("since", since), ("until", until)):
        if moment is not None:
            reader = reader.option(option, checks.moment(option, moment).isoformat())
    archive = reader.load(url)
    try:
        chosen = archive.where(where)
        chosen.schema  # noqa: B018  Connect looks at the filter only now
    except PySparkException as error:
        raise InvalidInputError(f"where makes no sense: {str(error).partition(chr(10))[0]}") from error
    return chosen


def _counted(archive: DataFrame) -> tuple[Selected, ...]:
    from pyspark.sql import functions as F  # noqa: N812

    gone = F.count(F.when(F.col("payload").isNull(), 1))
    rows = archive.groupBy("entrypoint", "state").agg(F.count("*").alias("jobs"), gone.alias("gone")).collect()
    return tuple(sorted((Selected(row.entrypoint, row.state, row.jobs, row.gone) for row in rows), key=_order))


def _order(one: Selected) -> tuple[str, str]:
    return one.entrypoint, one.state


def _jobs(archive: DataFrame, name: str, entrypoint: str | None, max_attempts: int | None) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    # A job that got new attempts may finish twice: the position distinguishes the two. On a ring so does the shard:
    # positions are per shard.
    shard = F.when(F.col("shard") > 0, F.col("shard").cast("string"))
    origin = F.concat_ws("/", F.lit(name), F.col("id"), F.col("position").cast("string"), shard)
    target = F.col("entrypoint") if entrypoint is None else F.lit(checks.entrypoint(entrypoint))
    attempts = F.col("max_attempts") if max_attempts is None else F.lit(checks.max_attempts(max_attempts))
    return archive.where("payload IS NOT NULL").select(
        F.substring(F.sha2(origin, 256), 1, 32).alias("id"),
        target.alias("entrypoint"),
        "payload",
        "priority",
        "zone",
        "key",
        "headers",
        attempts.alias("max_attempts"),
        "max_crashes",
        "fifo",
        *(field.name for field in GAINED),
    )


def _derived(url: str, *arguments: object) -> str:
    said = msgspec.json.encode([url.partition("?")[0], *(None if one is None else str(one) for one in arguments)])
    return f"replay-{hashlib.sha256(said).hexdigest()[:24]}"
