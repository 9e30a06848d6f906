"""`casque queue create URL`: an empty queue."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from casque.cli.auditing import audited
from casque.cli.convert import Layout
from casque.cli.place import Place, QueueName, find_place
from casque.cli.running import EXIT_FAILED, EXIT_INTERRUPTED, Json, OptionalUrl, StoreOptions, clear_ends, on_store
from casque.cli.terminal import print_json, say
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.client.reaching import is_address
from casque.clock import new_nonce
from casque.codec.head import KEY, RING, read_layout
from casque.codec.ring import SHARDS_MAX
from casque.errors import InvalidInputError
from casque.journal.port import Batch
from casque.storage.port import Store, Stored, locate

EXAMPLES = """
[bold]Examples[/]

  casque queue create file:///var/lib/orders

  casque queue create s3://bucket/orders --layout document -o region=eu-central-1

  casque queue create s3://bucket/tenants --shards 16
"""


@audited("queue create")
def create(
    url: OptionalUrl = None,
    layout: Annotated[Layout, typer.Option("--layout", help="How it is laid out.")] = Layout.LOG,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=SHARDS_MAX, help="Make a ring of so many shards.")
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Make an empty queue. A first enqueue does that too; this is to choose the layout, to spread it over shards, or to
    see that a bucket works.

    With --shards it is a ring: so many queues as one, each with its own commits, and the jobs of a zone always in the
    same one. `casque queue resize` changes their number later. A queue that is there already cannot become a ring.

    Exit code 0: it is there, now or already. 1: it is there already in another layout or size, and was left alone, or
    it is damaged. 2: it cannot be made.
    """
    if shards is not None:
        _create_ring(url, queue, option, shards, layout, json=json)
        return
    try:
        with clear_ends():
            place = find_place(url, queue, option)
            made, has = asyncio.run(_create(place, layout.value))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json({"url": place.url, "layout": has, "created": made})
    else:
        say(f"{place.url} {'is a queue now' if made else 'was a queue already'}: {has}")
    if has == RING:
        say("it is a ring of shards: --shards makes one, and says how many it has", err=True)
        raise typer.Exit(EXIT_FAILED)
    if has != layout.value:
        say(f"to have it as a {layout.value}: casque queue convert {place.url} --to {layout.value}", err=True)
        raise typer.Exit(EXIT_FAILED)


def _create_ring(
    url: str | None, queue: str | None, option: list[str] | None, shards: int, layout: Layout, *, json: bool
) -> None:
    async def work(store: Store) -> tuple[bool, str, int | None]:
        if layout is not Layout.LOG:
            raise InvalidInputError("the shards of a ring are logs: leave --layout out")
        parts = Parts(store, DEFAULTS.with_changes(find_place(url, queue, option).changes()))
        if (has := await _layout(store)) is None:
            made = await parts.builder().create(shards)
            has = await _layout(store)
            assert has is not None, "it is there, or something else is"
        else:
            made = False
        return made, has, (await parts.root().read()).size if has == RING else None

    made, has, size = on_store(url, option, work, queue=queue)
    where = find_place(url, queue, option).url
    if json:
        print_json({"url": where, "layout": has, "created": made, "shards": size})
    else:
        what = has if size is None else f"a ring of {size} shards"
        say(f"{where} {'is a queue now' if made else 'was a queue already'}: {what}")
    if size is None:
        say("a queue cannot become a ring: make one elsewhere, and let this one run empty", err=True)
        raise typer.Exit(EXIT_FAILED)
    if size != shards:
        say(f"to have {shards}: casque queue resize {where} --shards {shards}", err=True)
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
    return read_layout(KEY, read.body, locate(store, KEY)).layout if isinstance(read, Stored) else None
