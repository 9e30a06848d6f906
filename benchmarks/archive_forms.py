"""The archive as JSON lines and as Parquet: time to encode, bytes, and speed of reading.

`python benchmarks/archive_forms.py [JOBS]`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from casque.clock import SystemClock
from casque.codec.archive import Form, Range, archive_key, decode_archived
from casque.journal.archive import _encoded
from casque.scan.archive_columns import archive_batch
from casque.scan.attempt_columns import attempts_batch
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.tables import COLUMNS, Table
from casque.types import Attempt, Ending, Finished, JobRecord, JobSpec, JobState

HOUR, AT_MS = "2026-02-15T10", 1_771_149_600_000
FIVE = ("position", "entrypoint", "state", "created_at", "finished_at")
REPEATS = 5


def jobs_of(count: int) -> list[Finished]:
    """Zones, retries, results, headers and tags, as a queue in use has them; payloads of 230 bytes on average."""
    rng = Random(1)
    found = []
    for number in range(count):
        items = [{"sku": rng.randrange(10**6), "count": rng.randrange(9)} for _ in range(rng.randrange(1, 9))]
        order = {
            "order": number,
            "customer": f"c-{rng.randrange(5_000)}",
            "items": items,
            "note": f"{rng.random():.9f}",
        }
        created = AT_MS + number * 30 + rng.randrange(30)
        spec = JobSpec(
            f"{rng.getrandbits(128):032x}",
            rng.choice(("send", "bill", "ship")),
            json.dumps(order).encode(),
            zone=f"tenant-{rng.randrange(200)}" if number % 2 else None,
            headers={"trace": f"{rng.getrandbits(64):x}"} if number % 4 == 0 else None,
            tags=("urgent",) if number % 10 == 0 else (),
        )
        tries = (Attempt(created + 30, created + 90, Ending.FAILED, "host-1/7", number, "421 try again later"),)
        record = JobRecord(
            spec,
            number,
            created,
            JobState.RUNNING,
            created,
            token=number * 2,
            attempts=1 + (number % 8 == 0),
            worker=f"host-{rng.randrange(9)}/{rng.randrange(4)}",
            claimed_ms=created + 200,
            tries=tries if number % 8 == 0 else (),
        )
        result = b'{"sent": true, "code": 250}' if number % 3 == 0 else None
        found.append(Finished(1 + number // 20, created + 400, record, JobState.DONE, result=result))
    return found


def encoded(jobs: Sequence[Finished], form: Form) -> dict[str, bytes]:
    return asyncio.run(_encoded(HOUR, Range(1, 2**40), jobs, [form]))


def best_ms(work: Callable[[], Any]) -> float:
    """CPU time of all threads: the machine may be busy."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        times.append((time.process_time() - began) * 1000)
    return min(times)


async def stall_ms(jobs: Sequence[Finished], forms: Sequence[Form]) -> float:
    """The longest that the event loop was held up while these were encoded."""
    clock, longest, running = SystemClock(), 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            began = time.perf_counter()
            await clock.sleep(0)
            longest = max(longest, (time.perf_counter() - began) * 1000)

    watching = asyncio.create_task(watch())
    await clock.sleep(0)
    await _encoded(HOUR, Range(1, len(jobs)), jobs, forms)
    running = False
    await watching
    return longest


def main() -> None:
    for count in map(int, sys.argv[1:] or ("20", "200", "5000")):
        jobs = jobs_of(count)
        print(f"{count:,} jobs")
        for form in Form:
            key = archive_key(HOUR, Range(1, 2**40), form)
            [body] = encoded(jobs, form).values()
            one, columns = ArchiveObject(key, HOUR, 1, 2**40), list(COLUMNS[Table.ARCHIVE])
            split, tries = ArchiveSplit(Table.ARCHIVE, (one,)), ArchiveSplit(Table.ATTEMPTS, (one,))
            attempts = list(COLUMNS[Table.ATTEMPTS])
            took = {
                "encode": best_ms(lambda: encoded(jobs, form)),  # noqa: B023
                "to jobs": best_ms(lambda: decode_archived(key, body)),  # noqa: B023
                "all columns": best_ms(lambda: archive_batch(split, one, body, columns)),  # noqa: B023
                "five columns": best_ms(lambda: archive_batch(split, one, body, FIVE)),  # noqa: B023
                "attempts": best_ms(lambda: attempts_batch(tries, one, body, attempts)),  # noqa: B023
            }
            stall = min(asyncio.run(stall_ms(jobs, [form])) for _ in range(REPEATS))
            words = ", ".join(f"{what} {ms:.1f} ms" for what, ms in took.items())
            print(f"  {form.value:<8} {len(body):>10,} bytes; {words}; longest stall {stall:.1f} ms")


if __name__ == "__main__":
    main()
