"""How much is measured: the whole, a quick look, or just enough to show that it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    repetitions: int = 5
    state_depths: tuple[int, ...] = (0, 100_000, 1_000_000)
    state_jobs: int = 10_000
    """Jobs per repetition of the state section."""
    depths: tuple[int, ...] = (0, 1_000, 20_000)
    deepest: int = 1_000_000
    """How deep a queue of the log layout is made beyond `depths`."""
    memory_repetitions: int = 3
    file_repetitions: int = 3
    log_repetitions: int = 7
    """On files. Its own rates at several depths are compared, and files are noisy."""
    seconds: float = 2.0
    latency_repetitions: int = 2
    latency_seconds: float = 4.0
    log_warm_up_s: float = 8.0
    cost_concurrency: tuple[int, ...] = (1, 10, 100)
    cost_seconds: float = 0.6
    deep_seconds: float = 5.0
    spark_rows: int = 1_000_000
    spark_sample: int = 2_000
    """Rows for ways that are far slower."""
    spark_batches: int = 20
    spark_read_jobs: int = 300_000
    bulk_jobs: int = 200_000
    zone_jobs: int = 100_000
    with_jqueue: bool = True
    with_field: bool = True
    field_repetitions: int = 3
    field_jobs: int = 40_000
    field_depth: int = 100_000
    field_idle: int = 60
    spark_jobs: int = 1_000_000
    """Finished jobs in the archive that a pipeline starts from."""


FULL = Scale()
QUICK = Scale(
    repetitions=3,
    state_depths=(0, 100_000),
    state_jobs=3_000,
    depths=(0, 1_000),
    deepest=50_000,
    memory_repetitions=1,
    file_repetitions=1,
    log_repetitions=1,
    seconds=0.4,
    latency_repetitions=1,
    latency_seconds=1.0,
    log_warm_up_s=3.0,
    cost_concurrency=(1, 100),
    cost_seconds=0.3,
    deep_seconds=1.0,
    spark_rows=200_000,
    spark_sample=500,
    spark_batches=10,
    spark_read_jobs=60_000,
    bulk_jobs=50_000,
    zone_jobs=20_000,
    field_repetitions=1,
    field_jobs=10_000,
    field_depth=20_000,
    field_idle=20,
    spark_jobs=100_000,
)
TINY = Scale(
    repetitions=1,
    state_depths=(0, 1_000),
    state_jobs=200,
    depths=(0, 100),
    deepest=2_000,
    memory_repetitions=1,
    file_repetitions=1,
    log_repetitions=1,
    seconds=0.2,
    latency_repetitions=1,
    latency_seconds=0.5,
    log_warm_up_s=0.1,
    cost_concurrency=(10,),
    cost_seconds=0.05,
    deep_seconds=0.2,
    spark_rows=5_000,
    spark_sample=50,
    spark_batches=4,
    spark_read_jobs=1_000,
    spark_jobs=2_000,
    with_jqueue=False,  # making its environment may need a network
    with_field=False,
    field_repetitions=1,
    field_jobs=200,
    field_depth=300,
    field_idle=3,
    bulk_jobs=2_000,
    zone_jobs=1_000,
)
