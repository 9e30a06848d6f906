"""`casque queue create`: make an empty queue."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.exits import EXIT_FAILED
from casque.cli.head import RING, QueueHead, find_head
from casque.cli.options import Json, Layout
from casque.cli.output import answer, say
from casque.cli.target import QueueTarget
from casque.client.config import QueueConfig
from casque.client.connecting import is_address
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import new_nonce
from casque.codec.ring import SHARDS_MAX
from casque.errors import InvalidInputError
from casque.journal.port import Batch


class Created(msgspec.Struct, frozen=True):
    """The queue that is there now."""

    url: str
    layout: str
    created: bool
    shards: int | msgspec.UnsetType | None = msgspec.UNSET
    """Only if a ring was asked for."""


@command(
    "queue create",
    examples=[
        "casque queue create file:///var/lib/orders",
        "casque queue create s3://bucket/orders --layout document -o region=eu-central-1",
        "casque queue create s3://bucket/tenants --shards 16",
    ],
    audited=True,
)
def create(
    target: QueueTarget,
    layout: Annotated[Layout, typer.Option("--layout", help="How it is laid out.")] = Layout.LOG,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=SHARDS_MAX, help="Make a ring of this many shards.")
    ] = None,
    json: Json = False,
) -> None:
    """Make an empty queue. A first enqueue does that too; this is to choose the layout, to spread it over shards, or to
    see that a bucket works.

    With --shards it is a ring: that many queues as one, each with its own commits, and the jobs of a zone always in the
    same one. `casque queue resize` changes their number later. An existing queue cannot become a ring.

    Exit code 0: it is there, now or already. 1: it is there already in another layout or size, and was left alone, or
    it is damaged. 2: it cannot be made.
    """
    place = target.resolve()
    done = asyncio.run(_create(place, layout, shards))
    what = f"a ring of {done.shards} shards" if isinstance(done.shards, int) else done.layout
    answer(done, f"{place.url} {'is a queue now' if done.created else 'was a queue already'}: {what}", json=json)
    if hint := _hint(done, layout, shards):
        say(hint, err=True)
        raise typer.Exit(EXIT_FAILED)


def _hint(done: Created, layout: Layout, shards: int | None) -> str | None:
    """What to do if the queue is not what was asked for."""
    if shards is None and done.layout == RING:
        return "it is a ring of shards: --shards makes one, and says how many it has"
    if shards is None and done.layout != layout.value:
        return f"to have it as a {layout.value}: casque queue convert {done.url} --to {layout.value}"
    if shards is not None and done.shards is None:
        return "a queue cannot become a ring: make one elsewhere, and let this one run empty"
    if shards is not None and done.shards != shards:
        return f"to have {shards}: casque queue resize {done.url} --shards {shards}"
    return None


async def _create(place: QueueConfig, layout: Layout, shards: int | None) -> Created:
    if is_address(place.url):
        raise InvalidInputError("a queue is made where it is kept: give the URL of the bucket, not of a broker")
    if shards is not None and layout is not Layout.LOG:
        raise InvalidInputError("the shards of a ring are logs: leave --layout out")
    store = as_store(place.url, place.options)
    try:
        settings = DEFAULTS.with_changes(place.changes())
        created = False
        if (head := await find_head(store)) is None:
            if shards is None:
                created = await _create_plain(Parts(store, settings, layout=layout.value))
            else:
                created = await Parts(store, settings).builder().create(shards)
            head = await find_head(store)
            assert head is not None, "the queue was created, here or by another process"
        if shards is None:
            return Created(place.url, head.layout, created)
        return Created(place.url, head.layout, created, await _ring_size(Parts(store, settings), head))
    finally:
        await store.close()


async def _create_plain(parts: Parts) -> bool:
    opened = await parts.open_journal()
    # A first commit without any events. If another process is faster, its queue is as good.
    batch = Batch(writer=new_nonce(parts.rng), number=1, at_ms=parts.clock.wall_ms())
    await opened.journal.append(opened.state, batch)
    return True


async def _ring_size(parts: Parts, head: QueueHead) -> int | None:
    return (await parts.root().read()).size if head.layout == RING else None
