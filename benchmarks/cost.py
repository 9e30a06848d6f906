"""What each layout asks of the store by depth, and what S3 would charge for it.

Counted at the store. The number of requests depends on how many callers share a write; the bytes of a document on how
deep the queue is; the bytes of a log on what happens, and on how often a snapshot is due. Snapshots of a deep queue are
many minutes apart, so their share is computed from the rule that makes them due, and not left to which run meets one.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import sides
from benchmarks.load import ENTRYPOINT, PAYLOAD, Result, Run
from benchmarks.plot import Curve, Plot
from benchmarks.report import Section, Steps, Table
from benchmarks.scale import Scale
from casque.cli.cost.model import snapshot_bytes_per_commit
from casque.codec.stored import encode_job
from casque.prices import S3
from casque.types import JobRecord, JobSpec, JobState

DELAY_MS = 2.0
"""Long enough that callers meet in one write, as they would over a network."""
DOCUMENT, LOG, JQUEUE = "document", "log", "jqueue"
COLUMNS = (
    "side",
    "jobs queued",
    "callers",
    "PUT",
    "GET",
    "MB up",
    "of it snapshots",
    "MB down",
    "bytes up per call",
    "$ per million calls",
)


def measure(scale: Scale, steps: Steps) -> Section:
    table = Table(
        "cost: requests and bytes per 1,000 calls, dollars per million calls at S3's list prices",
        COLUMNS,
        notes=[
            "$0.005 per 1,000 PUT, $0.0004 per 1,000 GET; transfer within a region is free.",
            "Snapshots: their share in the long run, by the size of a job in one and the rule for when one is due.",
        ],
    )
    runs = [(side, run) for side in (DOCUMENT, LOG, JQUEUE) for run in _runs(side, scale)]
    steps.expect(len(runs))
    for side, run in runs:
        _add(table, side, run, sides.jqueue(run) if side == JQUEUE else sides.casque(run))
        steps.done(f"{side} at {run.depth:,}, {run.concurrency} callers")
    return Section([table])


def curves(section: Section) -> Plot:
    """Bytes per call by depth, for the most callers of the table: the fairest to layouts that write everything."""
    [table] = section.tables
    callers = max(row[COLUMNS.index("callers")] for row in table.rows)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        if row[COLUMNS.index("callers")] == callers:
            point = float(row[COLUMNS.index("jobs queued")]), float(row[COLUMNS.index("bytes up per call")])
            found.setdefault(str(row[0]), []).append(point)
    names = {DOCUMENT: "casque, document layout", LOG: "casque, log layout", JQUEUE: "jqueue 1.0"}
    return Plot(
        title=f"Bytes written per call, {callers} callers",
        across="jobs queued",
        up="bytes per call",
        curves=[Curve(names[side], points) for side, points in found.items()],
    )


def _runs(side: str, scale: Scale) -> list[Run]:
    base = Run(api="queue", place="memory", delay_ms=DELAY_MS, seconds=scale.cost_seconds)
    depths = scale.depths
    if side == LOG:
        base = replace(base, layout="log")
        depths = (*depths, scale.deepest)
    elif side == JQUEUE:
        # It asks the same at every depth and takes minutes at the deepest: two depths show it.
        depths = depths[:2] if sides.have_jqueue(scale) else ()
    return [replace(base, depth=depth, concurrency=callers) for depth in depths for callers in scale.cost_concurrency]


def _add(table: Table, side: str, run: Run, result: Result) -> None:
    assert result.failed == 0, result.first_error
    per_call = 1 / result.calls
    puts, gets = result.requests.get("PUT", 0) * per_call, result.requests.get("GET", 0) * per_call
    snapshots = _snapshot_bytes_per_call(run, result) / 1000 if run.layout == "log" else 0.0
    up = (result.bytes_up - result.bytes_of_snapshots) * per_call / 1000 + snapshots
    down = result.bytes_down * per_call / 1000
    dollars = 1_000_000 * S3.dollars(puts=puts, gets=gets)
    requests = puts * 1000, gets * 1000
    table.add(side, run.depth, run.concurrency, *requests, up, snapshots, down, up * 1000, dollars)


def _snapshot_bytes_per_call(run: Run, result: Result) -> float:
    commits = result.requests["PUT"]
    per_commit = (result.bytes_up - result.bytes_of_snapshots) / commits
    return snapshot_bytes_per_commit(run.depth * len(_line(run.depth)), per_commit) * commits / result.calls


def _line(depth: int) -> bytes:
    """A job like those that the queue was filled with, as it stands in a snapshot."""
    now_ms = 1_700_000_000_123
    spec = JobSpec("00000000-0000-4000-8000-000000000000", ENTRYPOINT, PAYLOAD, 0, None, 25)
    return encode_job(JobRecord(spec, depth, now_ms, JobState.READY, now_ms)) + b",\n"
