"""`casque bench`: measure how fast a queue is on a bucket."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import msgspec
import typer

from casque.cli.bench.counting import CountingStore
from casque.cli.bench.measure import Bench, Measurement
from casque.cli.command import command
from casque.cli.files import local_directory, scratch_directory
from casque.cli.options import Json
from casque.cli.output import Columns, answer, print_table, progress, warn
from casque.cli.target import BucketTarget
from casque.client.config import QueueConfig
from casque.client.opening import as_store
from casque.clock import new_nonce, system_random
from casque.errors import CasqueError, InvalidInputError
from casque.prices import S3
from casque.storage.port import Store
from casque.storage.url import is_address

DELETES_MAX = 32
NAME = "casque-bench"


class BenchResult(msgspec.Struct, frozen=True):
    """All measurements."""

    url: str
    callers: int
    payload_bytes: int
    rows: tuple[Measurement, ...]
    leftover: str | None
    """The prefix of objects that could not be removed."""


@command(
    "bench",
    examples=[
        "casque bench s3://bucket/prefix -o region=eu-central-1",
        "casque bench file:///var/lib/casque --seconds 5 --json",
    ],
)
def bench(
    target: BucketTarget,
    seconds: Annotated[
        float,
        typer.Option("--seconds", "-t", metavar="SECONDS", min=0.01, max=3600, help="How long each measurement takes."),
    ] = 2.0,
    callers: Annotated[int, typer.Option("--callers", "-c", min=1, max=10_000, help="Concurrent callers.")] = 50,
    payload: Annotated[
        int, typer.Option("--payload", metavar="BYTES", min=0, max=1_000_000, help="Size of a job's payload.")
    ] = 100,
    json: Json = False,
) -> None:
    """Measure how fast a queue would be here: jobs enqueued one by one, by many callers and in bulk, jobs processed,
    and how soon an idle worker gets a job; with the requests that it took.

    Makes a queue in a directory of its own below the URL, beside other objects, and removes it. Everything happens in
    this one process, on an embedded queue. It makes some thousand requests, which cost a few cents at S3.

    Exit code 0: measured. 2: the bucket cannot be used.
    """
    place = target.resolve()
    result = asyncio.run(_measure(place, seconds=seconds, callers=callers, payload=payload, quiet=json))
    answer(result, lambda: _print_result(result), json=json)


async def _measure(place: QueueConfig, *, seconds: float, callers: int, payload: int, quiet: bool) -> BenchResult:
    if is_address(place.url):
        raise InvalidInputError("a bucket is measured, and the URL is that of a broker: give the URL of the bucket")
    directory = local_directory(place.url)
    with nullcontext() if directory is None else scratch_directory(directory, NAME) as inside:
        url = _new_prefix(place.url) if inside is None else inside.as_uri()
        return await _measure_at(url, place, seconds=seconds, callers=callers, payload=payload, quiet=quiet)


async def _measure_at(
    url: str, place: QueueConfig, *, seconds: float, callers: int, payload: int, quiet: bool
) -> BenchResult:
    store = as_store(url, place.options)
    leftover: str | None = None
    rows: list[Measurement] = []
    with progress(6, "starting", wanted=not quiet) as (bar, task):
        seen: list[str] = []

        def report(what: str, share: float) -> None:
            if what not in seen:
                seen.append(what)
            bar.update(task, description=what, completed=len(seen) - 1 + share)

        try:
            rows = await Bench(
                CountingStore(store),
                seconds=seconds,
                callers=callers,
                payload=b"x" * payload,
                report=report,
            ).run()
        finally:
            bar.update(task, description="cleaning up", completed=6)
            try:
                await asyncio.shield(_remove(store))
            except (CasqueError, OSError):
                leftover = url
            await store.close()
    return BenchResult(place.url, callers, payload, tuple(rows), leftover)


def _new_prefix(url: str) -> str:
    parts = urlsplit(url)
    name = f"{NAME}-{new_nonce(system_random())}"
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


async def _remove(store: Store) -> None:
    keys = [key async for key in store.list()]
    for start in range(0, len(keys), DELETES_MAX):
        await asyncio.gather(*(store.delete(key) for key in keys[start : start + DELETES_MAX]))


def _print_result(result: BenchResult) -> None:
    columns: Columns = (
        (f"{result.payload_bytes} bytes a job", lambda row: row.what),
        ("jobs/s", lambda row: f"{row.jobs_per_s:,.0f}"),
        ("median ms", lambda row: f"{row.median_ms:,.2f}"),
        ("worst ms", lambda row: f"{row.worst_ms:,.1f}"),
        ("writes/job", lambda row: f"{row.puts / row.jobs:.3f}"),
        ("$/million at S3", lambda row: f"{S3.dollars(puts=row.puts, gets=row.gets) / row.jobs * 1e6:,.2f}"),
    )
    print_table(columns, [row for row in result.rows if row.jobs])
    if result.leftover is not None:
        warn(f"objects below {result.leftover} could not be removed")
