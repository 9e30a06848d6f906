"""The tables of a warehouse, which `casque pipeline run` makes from a queue's history. They only ever gain columns.

Every table is partitioned by `date`, in UTC, which is part of the file names and not a column in the files. Times are
instants with milliseconds, spans are whole milliseconds. Everything in a warehouse is as of one position of the queue,
or of each shard of a ring, so the tables agree with each other. Source of the documentation in
`docs/reference/warehouse.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from casque.fields import GAINED


class Column(NamedTuple):
    """The type of a column, and its meaning."""

    type: str
    meaning: str


class Relation(NamedTuple):
    """A table: what a row is, what makes it unique, and its columns."""

    rows: str
    unique: tuple[str, ...]
    columns: dict[str, Column]


def _columns(**columns: tuple[str, str]) -> dict[str, Column]:
    return {name: Column(*column) for name, column in columns.items()}


_SHARD = {"shard": Column("int", "which shard of a ring; 0 of a queue without shards")}
_WHOSE = {
    "entrypoint": Column("string", "which handler the jobs are for"),
    "zone": Column("string", "whose jobs they are; null for none"),
}
_JOB = _columns(
    id=("string", "the job"),
    entrypoint=("string", "which handler it is for"),
    zone=("string", "whose job it is; null for none"),
    state=("string", "where it stands"),
    priority=("int", "lower goes first"),
    key=("string", "its unique key, if it had one"),
    payload_bytes=("bigint", "how large its payload is; payloads themselves stay in the archive"),
    sequence=("bigint", "its number in the order of enqueueing"),
    token=("bigint", "of its last lease; 0 if it was never claimed"),
    attempts=("int", "how often it was tried"),
    max_attempts=("int", "how often it may be tried; null for no limit"),
    worker=("string", "who claimed it last"),
    created_at=("timestamp", "when it was enqueued"),
    run_at=("timestamp", "when it was meant to run, if that was said"),
    first_due_at=("timestamp", "when it first could run: `created_at`, or `run_at` if that is later"),
    first_claimed_at=("timestamp", "when it was claimed first; null if never, or if nobody noted it"),
    claimed_at=("timestamp", "when it was claimed last"),
    due_at=("timestamp", "when it last became due, after a failure for example"),
    error=("string", "of the last attempt that failed"),
    error_class=("string", "the error up to its first colon, with numbers and ids taken out"),
    revived=("boolean", "a dead job that was given fresh attempts: it was counted as enqueued before"),
)
_GAINED = {field.name: Column(str(field.sql), field.meaning) for field in GAINED}
"""Fields that jobs gained: tables have them at their end."""
_COUNTS = _columns(
    enqueued=("bigint", "jobs enqueued in this time, finished by now or not"),
    finished=("bigint", "jobs that finished in this time: done, dead and cancelled"),
    done=("bigint", "jobs that were done"),
    dead=("bigint", "jobs that ran out of attempts"),
    cancelled=("bigint", "jobs that were cancelled"),
    retried=("bigint", "of the finished jobs, those that took more than one attempt"),
    attempts=("bigint", "attempts that ended in this time, their jobs finished by now or not"),
    failed=("bigint", "attempts that ended in a failure or with a lease that ran out"),
    throughput=("double", "`finished` per second"),
    retry_rate=("double", "`retried` / (`done` + `dead`); null without any"),
    failure_rate=("double", "`dead` / (`done` + `dead`); null without any"),
    attempt_failure_rate=("double", "`failed` / `attempts`; null without any"),
    wait_count=("bigint", "finished jobs whose first claim is known"),
    wait_ms_sum=("bigint", "the time from `first_due_at` to `first_claimed_at`, all of them together"),
    wait_ms_max=("bigint", "the longest"),
    wait_p50_ms=("double", "the median of the wait, to 1 %"),
    wait_p90_ms=("double", "what nine of ten did not exceed, to 1 %"),
    wait_p99_ms=("double", "what 99 of 100 did not exceed, to 1 %"),
    wait_sketch=(
        "map<int,bigint>",
        "the waits by bucket: sketches of any rows merge by adding (`casque.spark.sketch`)",
    ),
    run_count=("bigint", "attempts that ended in this time and whose claim is known"),
    run_ms_sum=("bigint", "the time from claim to end, all of them together"),
    run_ms_max=("bigint", "the longest"),
    run_p50_ms=("double", "the median of the run time, to 1 %"),
    run_p90_ms=("double", "what nine of ten did not exceed, to 1 %"),
    run_p99_ms=("double", "what 99 of 100 did not exceed, to 1 %"),
    run_sketch=("map<int,bigint>", "the run times by bucket"),
)
_DATE = _columns(date=("date", "the partition"))


TABLES: dict[str, Relation] = {
    "bronze/events": Relation(
        "one event of the change feed, as it was committed",
        ("shard", "position", "index"),
        _DATE
        | _SHARD
        | _columns(
            position=("bigint", "the commit"),
            index=("int", "its place in the commit"),
            at=("timestamp", "the time of the commit, whose date is the partition"),
            kind=("string", "what happened: added, claimed, acked, nacked, ..."),
            job_id=("string", "to which job"),
            entrypoint=("string", "of an added job"),
            zone=("string", "of an added job"),
            priority=("int", "of an added job"),
            payload=("binary", "of an added job; null unless the pipeline was told to keep payloads"),
            payload_bytes=("bigint", "how large it is"),
            key=("string", "of an added job"),
            headers=("map<string,string>", "of an added job"),
            run_at=("timestamp", "of an added job"),
            max_attempts=("int", "of an added job"),
            sequence=("bigint", "of an added job"),
            due_at=("timestamp", "when the job becomes due: added, nacked, expired, revived, rescheduled"),
            delayed=("boolean", "whether that is later than the commit"),
            token=("bigint", "of the lease"),
            lease_ms=("bigint", "how long the lease is: claimed"),
            worker=("string", "who claimed it"),
            error=("string", "what went wrong: nacked, died"),
            result=("binary", "of an acked job; null unless the pipeline was told to keep payloads"),
            request_id=("string", "of a remembered request"),
            verb=("string", "of a remembered request"),
            count=("bigint", "of a remembered request"),
            epoch=("bigint", "of the leadership that committed it"),
            writer=("string", "who committed it"),
            batch=("bigint", "which of the writer's commits it was"),
            operations=("int", "how many events of its commit are about jobs: what the commit's cost is shared among"),
        )
        | _GAINED,
    ),
    "silver/jobs": Relation(
        "one finish of a job, by the date on which it finished; a dead job that is retried can finish again",
        ("shard", "position", "id"),
        _DATE
        | _SHARD
        | _columns(position=("bigint", "the commit that finished it"))
        | _JOB
        | _columns(
            finished_at=("timestamp", "when it finished; the partition is this date"),
            scheduled_ms=("bigint", "from `created_at` to `first_due_at`"),
            wait_ms=("bigint", "from `first_due_at` to `first_claimed_at`; null if that is not known"),
            run_ms=("bigint", "all attempts together, as far as they are known"),
            pause_ms=("bigint", "after the first claim, but not running: waiting for another attempt"),
            total_ms=("bigint", "from `created_at` to `finished_at`"),
            result_bytes=("bigint", "how large its result is; null for none"),
        )
        | _GAINED,
    ),
    "silver/attempts": Relation(
        "one attempt at a finished job, by the date on which the job finished",
        ("shard", "position", "job_id", "attempt"),
        _DATE
        | _SHARD
        | _columns(
            position=("bigint", "the commit that finished the job"),
            job_id=("string", "the job"),
            entrypoint=("string", "which handler it is for"),
            zone=("string", "whose job it is; null for none"),
            attempt=("int", "which attempt, from 1"),
            token=("bigint", "of its lease"),
            worker=("string", "who had claimed it"),
            claimed_at=("timestamp", "when it began"),
            ended_at=("timestamp", "when it ended"),
            run_ms=("bigint", "from claim to end"),
            outcome=("string", "`failed` or `expired`; of the last one what became of the job"),
            error_class=("string", "the error up to its first colon, with numbers and ids taken out"),
            error=("string", "what went wrong"),
            last=("boolean", "the one that finished the job"),
        ),
    ),
    "silver/queue": Relation(
        "one job that is in the queue as of the warehouse's position, dead ones too; replaced by each run",
        ("shard", "id"),
        _DATE
        | _SHARD
        | _columns(as_of=("timestamp", "the moment they are seen at; the partition is this date"))
        | _JOB
        | _columns(
            tried=(
                "array<struct<claimed_ms:bigint,ended_ms:bigint,worker:string,outcome:string>>",
                "its attempts that came to nothing so far, in milliseconds since 1970; null of a dead one",
            )
        )
        | _GAINED,
    ),
    "gold/minutes": Relation(
        "one minute of an entrypoint and a zone in which anything happened",
        ("minute", "entrypoint", "zone"),
        _DATE | _columns(minute=("timestamp", "its beginning")) | _WHOSE | _COUNTS,
    ),
    "gold/hours": Relation(
        "one hour of an entrypoint and a zone in which anything happened",
        ("hour", "entrypoint", "zone"),
        _DATE | _columns(hour=("timestamp", "its beginning")) | _WHOSE | _COUNTS,
    ),
    "gold/dead_letters": Relation(
        "one hour, entrypoint, zone and kind of error that killed jobs",
        ("hour", "entrypoint", "zone", "error_class"),
        _DATE
        | _columns(hour=("timestamp", "in which they died"))
        | _WHOSE
        | _columns(
            error_class=(
                "string",
                "the error up to its first colon, with numbers and ids taken out; null if none was given",
            ),
            jobs=("bigint", "how many died of it"),
            sample_job=("string", "the first of them"),
            sample_error=("string", "its error in full"),
            first_at=("timestamp", "when the first of them died"),
            last_at=("timestamp", "when the last of them died"),
        ),
    ),
    "gold/depth": Relation(
        "one minute of an entrypoint and a zone in which there were any jobs",
        ("minute", "entrypoint", "zone"),
        _DATE
        | _columns(minute=("timestamp", "its beginning"))
        | _WHOSE
        | _columns(
            scheduled=("bigint", "jobs at the end of the minute that were not due yet for the first time"),
            waiting=(
                "bigint",
                "jobs at the end of the minute that were due and not running, pauses after a failure included",
            ),
            running=("bigint", "jobs at the end of the minute that were running"),
            scheduled_ms=("bigint", "the time that jobs spent like this in the minute, all together"),
            waiting_ms=("bigint", "the same for waiting: divided by 60,000 it is how many there were on average"),
            running_ms=("bigint", "the same for running"),
        ),
    ),
    "gold/workers": Relation(
        "one minute of a worker in which it had a job",
        ("minute", "worker"),
        _DATE
        | _columns(
            minute=("timestamp", "its beginning"),
            worker=("string", "who; null if the worker gave no name"),
            busy_ms=("bigint", "the time of all its attempts within the minute, together"),
            utilisation=("double", "`busy_ms` / 60,000: above 1 if it does several jobs at once"),
            attempts=("bigint", "attempts that ended in the minute"),
            failed=("bigint", "those of them that failed or whose lease ran out"),
        ),
    ),
    "gold/fairness": Relation(
        "one hour in which jobs finished, all zones compared",
        ("hour",),
        _DATE
        | _columns(
            hour=("timestamp", "its beginning"),
            zones=("int", "zones whose jobs finished in it; jobs without a zone count as one zone"),
            jobs=("bigint", "jobs that finished in it"),
            jain_service=(
                "double",
                "Jain's index over the zones' run time (`run_ms_sum`): 1 all alike, 1 / `zones` one has all",
            ),
            jain_wait=(
                "double",
                "Jain's index over the zones' mean waits: 1 if all wait alike; null without any waits",
            ),
            largest_zone=("string", "the zone with the most finished jobs"),
            largest_share=("double", "its share of them"),
            large_zones=(
                "int",
                "the fewest zones that together have half of the finished jobs or more; the others are small",
            ),
            large_wait_ms=("double", "mean wait of the large zones' jobs"),
            small_wait_ms=("double", "mean wait of the small zones' jobs; null if there are none"),
            small_to_large=(
                "double",
                "`small_wait_ms` / `large_wait_ms`: above 1 the small ones suffer; null if one is missing or 0",
            ),
        ),
    ),
    "gold/requests": Relation(
        "one hour of an entrypoint and a zone, and what its operations cost at the store",
        ("hour", "entrypoint", "zone"),
        _DATE
        | _columns(hour=("timestamp", "its beginning"))
        | _WHOSE
        | _columns(
            operations=("bigint", "events of the feed about their jobs: added, claimed, beaten, acked, ..."),
            commits=("decimal(28,9)", "their share of the commits: an operation's is 1 / the operations of its commit"),
            bytes=("bigint", "payloads enqueued with them"),
            dollars=("double", "`commits` at the price of one write request (S3's list price unless set)"),
        ),
    ),
}


def ddl(table: str) -> str:
    """The columns as DDL, for `df.schema` and `CREATE TABLE`."""
    return ", ".join(f"`{name}` {column.type}" for name, column in TABLES[table].columns.items())
