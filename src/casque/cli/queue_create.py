"""`casque queue create URL`: an empty queue."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from casque.cli.convert import Layout
from casque.cli.place import Place, QueueName, find_place
from casque.cli.running import EXIT_FAILED, EXIT_INTERRUPTED, Json, OptionalUrl, StoreOptions, clear_ends
from casque.cli.shown import print_json
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.client.reaching import is_address
from casque.clock import new_nonce
from casque.codec.head import KEY, read_layout
from casque.errors import InvalidInputError
from casque.journal.port import Batch
from casque.storage.port import Store, Stored

EXAMPLES = """
[bold]Examples[/]

  casque queue create file:///var/lib/orders

  casque queue create s3://bucket/orders --layout document -o region=eu-central-1
"""


def create(
    url: OptionalUrl = None,
    layout: Annotated[Layout, typer.Option("--layout", help="How it is laid out.")] = Layout.LOG,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Make an empty queue. A first enqueue does that too; this is to choose the layout, or to see that a bucket works.

    Exit code 0: it is there, now or already. 1: it is there already in the other layout, and was left alone, or it is
    damaged. 2: it cannot be made.
    """
    try:
        with clear_ends():
            place = find_place(url, queue, option)
            made, has = asyncio.run(_create(place, layout.value))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json({"url": place.url, "layout": has, "created": made})
    else:
        typer.echo(f"{place.url} {'is a queue now' if made else 'was a queue already'}: {has}")
    if has != layout.value:
        typer.echo(f"to have it as a {layout.value}: casque queue convert {place.url} --to {layout.value}", err=True)
        raise typer.Exit(EXIT_FAILED)


async def _create(place: Place, layout: str) -> tuple[bool, str]:
    if is_address(place.url):
        raise InvalidInputError("a queue is made where it is kept: give the URL of the bucket, not of a broker")
    store = as_store(place.url, place.options)
    try:
        if (has := await _layout(store)) is not None:
            return False, has
        parts = Parts(store, DEFAULTS.with_changes(place.changes()), layout=layout)
        journal = parts.journal()
        # A first commit without any events. Whoever is faster makes the queue, and that is as good.
        batch = Batch(writer=new_nonce(parts.rng), number=1, at_ms=parts.clock.wall_ms())
        await journal.append(await journal.load(), batch)
        has = await _layout(store)
        assert has is not None, "the commit has landed"
        return True, has
    finally:
        await store.close()


async def _layout(store: Store) -> str | None:
    read = await store.get(KEY)
    return read_layout(KEY, read.body).layout if isinstance(read, Stored) else None
