"""How gold is added up and files are merged, piece by piece and without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from casque.clock import Random
from casque.scan.arrow_types import arrow_schema
from casque.spark import combine, gold, pipeline, silver, sketch, sketch_arrays
from casque.spark.parquet import File
from casque.spark.warehouse import Change, Warehouse
from casque.types import Attempt, Ending, JobRecord, JobSpec, JobState

BEGIN_MS = 1_771_113_600_000
"""2026-02-15, at midnight."""
MB = 1024 * 1024


def test_sketches_by_the_thousand_are_those_of_one() -> None:
    rng = Random(1)
    spans = [[int(rng.lognormvariate(4, 3)) for _ in range(rng.randrange(40))] for _ in range(50)]
    rows = pa.array([row for row, some in enumerate(spans) for _ in some]).to_numpy()
    flat = pa.array([span for some in spans for span in some]).to_numpy()
    once = sketch_arrays.packed(len(spans), [(rows, sketch_arrays.buckets(flat), 1 + 0 * flat)])
    # Half of them are cut off, and everything is told twice and taken off once.
    row, bucket, count = sketch_arrays.unpacked(once.slice(25))
    again = sketch_arrays.packed(25, [(row, bucket, 2 * count), (row, bucket, -count)])

    plain = [sketch.sketch(some) for some in spans]
    assert [dict(one) for one in once.to_pylist()] == plain
    assert [dict(one) for one in again.to_pylist()] == plain[25:]
    for q, found in zip((0.0, 0.5, 0.99, 1.0), sketch_arrays.quantiles(once, 0.0, 0.5, 0.99, 1.0), strict=True):
        assert found.to_pylist() == [sketch.quantile(one, q) for one in plain]


def failed_once(job_id: str, *, ran_ms: int) -> JobRecord:
    """It waits for its second attempt."""
    tried = Attempt(BEGIN_MS, BEGIN_MS + ran_ms, Ending.FAILED, "w", 1, "no answer")
    spec = JobSpec(job_id, "send", b"", zone="z")
    return JobRecord(spec, 1, BEGIN_MS - 1, JobState.READY, BEGIN_MS, attempts=1, tries=(tried,))


def test_an_attempt_in_place_of_another_of_the_same_minute_counts_with_its_own_time() -> None:
    before, now = (silver.waiting([failed_once(name, ran_ms=ms)], BEGIN_MS + 50) for name, ms in (("a", 5), ("b", 9)))
    added = combine.of_queue(now, before)["gold/minutes"]
    [row] = gold.summed("gold/minutes", added).to_pylist()
    assert (row["enqueued"], row["attempts"], row["run_ms_sum"]) == (0, 0, 4)
    assert dict(row["run_sketch"]) == {sketch.bucket(5): -1, sketch.bucket(9): 1}


def test_what_stays_in_the_queue_adds_nothing() -> None:
    rows = silver.waiting([failed_once("a", ran_ms=5)], BEGIN_MS + 50)
    assert all(added.num_rows == 0 for added in combine.of_queue(rows, rows).values())


def test_a_level_stands_in_every_minute_until_it_changes_whatever_portion_is_asked_for() -> None:
    nothing = dict.fromkeys(combine.LEVELS, 0)
    changes = [
        {"m": 10, "entrypoint": "e", "zone": None, **nothing, "d": 2, "d_ms": 2 * 15_000},
        {"m": 14, "entrypoint": "e", "zone": None, **nothing, "d": -2, "d_ms": -2 * 45_000},
        {"m": 11, "entrypoint": "e", "zone": "z", **nothing, "s": 1, "s_ms": 60_000},
        {"m": 12, "entrypoint": "e", "zone": "z", **nothing, "s": -1, "s_ms": -60_000},
    ]
    levels = gold.Levels(pa.Table.from_pylist(changes, schema=arrow_schema(combine.ADDED["gold/depth"])))
    whole = levels.between(0, 100).to_pylist()
    waiting = {row["m"]: (row["waiting"], row["waiting_ms"]) for row in whole if row["zone"] is None}
    assert waiting == {10: (2, 30_000), 11: (2, 120_000), 12: (2, 120_000), 13: (2, 120_000), 14: (0, 30_000)}
    scheduled = {row["m"]: (row["scheduled"], row["scheduled_ms"]) for row in whole if row["zone"] == "z"}
    assert scheduled == {11: (1, 60_000), 12: (0, 0)}
    portions = [row for first in range(0, 100, 3) for row in levels.between(first, first + 3).to_pylist()]
    assert sorted(portions, key=repr) == sorted(whole, key=repr)


@pytest.fixture
def change(tmp_path: Path) -> Change:
    return Warehouse(tmp_path.as_uri()).begin()


def left(change: Change, run: int, *sizes: int) -> list[File]:
    """What a run left behind of jobs, on one date."""
    files = [
        File(f"silver/jobs/date=2026-02-15/part-20260215T{run:06}-{n}.parquet", "2026-02-15", 1, size, run, run)
        for n, size in enumerate(sizes)
    ]
    change.add("silver/jobs", gold.columns("silver/jobs"), files)
    return files


def test_files_of_many_small_runs_become_one_and_larger_ones_are_left_alone(change: Change) -> None:
    left(change, 0, *[5 * MB] * 12)
    assert not list(pipeline._compactions(change)), "what one large run wrote is not written again by the next"
    small = [file for run in range(1, 9) for file in left(change, run, 20_000 + run)]
    [compaction] = pipeline._compactions(change)
    assert compaction.files == small


def test_too_many_files_become_one_whoever_wrote_them(change: Change) -> None:
    small = left(change, 0, *[10_000] * pipeline.COMPACT_FILES)
    [compaction] = pipeline._compactions(change)
    assert len(compaction.files) == len(small)


def test_a_row_is_written_again_a_few_times_however_many_runs_there_are(change: Change) -> None:
    written = 0
    for run in range(500):
        for compaction in pipeline._compactions(change):
            size = sum(file.bytes for file in compaction.files)
            written += size
            merged = File(f"silver/jobs/part-{run}-{written}.parquet", "2026-02-15", 1, size, run, run)
            columns = gold.columns("silver/jobs")
            change.add("silver/jobs", columns, [merged], instead={file.key for file in compaction.files})
        left(change, run, 100_000)
    assert written < 4 * 500 * 100_000
    assert len(change.manifest("silver/jobs").files) < 4 * pipeline.COMPACT_RUNS
