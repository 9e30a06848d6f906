"""`casque bench URL`: how fast a queue would be on this bucket."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import typer
from rich.console import Console

from casque.cli.bench.counted import CountedStore
from casque.cli.bench.measure import Bench, Row
from casque.cli.place import Place, QueueName, find_place
from casque.cli.running import EXIT_INTERRUPTED, Json, OptionalBucket, StoreOptions, clear_ends
from casque.cli.shown import print_table, progress
from casque.cli.terminal import Terminal, print_json
from casque.client.opening import as_store
from casque.client.reaching import is_address
from casque.clock import new_nonce, system_random
from casque.errors import CasqueError, InvalidInputError
from casque.prices import S3
from casque.storage.port import Store

EXAMPLES = """
[bold]Examples[/]

  casque bench s3://bucket/prefix -o region=eu-central-1

  casque bench file:///var/lib/casque --seconds 5 --json
"""
DELETES = 32


class Measured(msgspec.Struct, frozen=True):
    """The answer as JSON."""

    url: str
    callers: int
    payload_bytes: int
    rows: tuple[Row, ...]
    leftover: str | None
    """Where objects are left that could not be removed."""


def bench(
    url: OptionalBucket = None,
    seconds: Annotated[
        float, typer.Option("--seconds", "-t", min=0.01, max=3600, help="How long each measurement takes.")
    ] = 2.0,
    callers: Annotated[int, typer.Option("--callers", "-c", min=1, max=10_000, help="Where many call at once.")] = 50,
    payload: Annotated[int, typer.Option("--payload", min=0, max=1_000_000, help="Bytes of a job's payload.")] = 100,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Measure how fast a queue would be here: enqueued one by one, by many callers and in bulk, worked off, and how
    soon an idle worker gets a job; with the requests that it took.

    Makes a queue in a directory of its own below the URL, beside whatever is there, and removes it. Everything happens
    in this one process, on an embedded queue. It makes some thousand requests, which cost a few cents at S3.

    Exit code 0: measured. 2: the bucket cannot be used.
    """
    try:
        with clear_ends():
            place = find_place(url, queue, option)
            measured = asyncio.run(_measure(place, seconds=seconds, callers=callers, payload=payload, quiet=json))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json(measured)
    else:
        _show(measured, Terminal(highlight=False))


async def _measure(place: Place, *, seconds: float, callers: int, payload: int, quiet: bool) -> Measured:
    if is_address(place.url):
        raise InvalidInputError("a bucket is measured, and the URL is that of a broker: give the URL of the bucket")
    url = _beside(place.url)
    store = as_store(url, place.options)
    leftover: str | None = None
    rows: list[Row] = []
    with progress(6, "starting", wanted=not quiet) as (bar, task):
        seen: list[str] = []

        def tell(what: str, share: float) -> None:
            if what not in seen:
                seen.append(what)
            bar.update(task, description=what, completed=len(seen) - 1 + share)

        try:
            rows = await Bench(
                CountedStore(store),
                seconds=seconds,
                callers=callers,
                payload=b"x" * payload,
                tell=tell,
            ).run()
        finally:
            bar.update(task, description="cleaning up", completed=6)
            try:
                await asyncio.shield(_removed(store, url))
            except (CasqueError, OSError):
                leftover = url
            await store.close()
    return Measured(place.url, callers, payload, tuple(rows), leftover)


def _beside(url: str) -> str:
    parts = urlsplit(url)
    name = f"casque-bench-{new_nonce(system_random())}"
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


async def _removed(store: Store, url: str) -> None:
    keys = [key async for key in store.list()]
    for start in range(0, len(keys), DELETES):
        await asyncio.gather(*(store.delete(key) for key in keys[start : start + DELETES]))
    if (parts := urlsplit(url)).scheme == "file":
        # Directories, and what the store keeps for itself.
        shutil.rmtree(Path(unquote(parts.path)), ignore_errors=True)


def _show(measured: Measured, console: Console) -> None:
    print_table(
        (
            (f"{measured.payload_bytes} bytes a job", lambda row: row.what),
            ("jobs/s", lambda row: f"{row.jobs_per_s:,.0f}"),
            ("median ms", lambda row: f"{row.median_ms:,.2f}"),
            ("worst ms", lambda row: f"{row.worst_ms:,.1f}"),
            ("writes/job", lambda row: f"{row.puts / row.jobs:.3f}"),
            ("$/million at S3", lambda row: f"{S3.dollars(puts=row.puts, gets=row.gets) / row.jobs * 1e6:,.2f}"),
        ),
        [row for row in measured.rows if row.jobs],
    )
    if measured.leftover is not None:
        console.print(f"objects below {measured.leftover} could not be removed", style="yellow", soft_wrap=True)
