"""`casque queue resize URL --shards N`: a ring grows or shrinks, and nothing moves."""

from __future__ import annotations

from typing import Annotated

import typer

from casque.cli.auditing import audited
from casque.cli.place import QueueName, find_place
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.terminal import print_json, say
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.reaching import through_brokers
from casque.codec.ring import SHARDS_MAX, RingHead
from casque.settings import SettingsChanges
from casque.storage.port import Store

EXAMPLES = """
[bold]Examples[/]

  casque queue resize s3://bucket/tenants --shards 64

  casque queue resize file:///var/lib/tenants --shards 8 --json
"""


@audited("queue resize")
def resize(
    shards: Annotated[int, typer.Option("--shards", min=1, max=SHARDS_MAX, help="How many the ring has from now on.")],
    url: OptionalBucket = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Change how many shards a ring has, while it is used. Nothing moves: a zone stays where its jobs are until it has
    run empty, and comes back where the new size wants it. Shards that are too many run empty and take nothing new.

    Processes that have the ring open notice within about a second. Shards that brokers lead are changed through them,
    with the token in CASQUE_PEER_TOKEN where they ask for one. If nothing lies any more where only sizes of the past
    would look for it, this is noted too, and a process that has the ring open for a quarter of an hour then forgets
    them.

    Exit code 0: it has this size, now or already. 1: it is damaged. 2: it is no ring, or it cannot be asked.
    """

    async def work(store: Store) -> tuple[RingHead, RingHead]:
        # A command is there for a moment: it should not add the jobs of schedules by that.
        place = find_place(url, queue, option)
        changes: SettingsChanges = {"ticks": False, **place.changes()}
        parts = Parts(store, DEFAULTS.with_changes(changes))
        builder = parts.builder(through_brokers(parts, tls=place.tls))
        before = await builder.tidy()
        return before, await builder.resize(shards)

    before, now = on_store(url, option, work, queue=queue)
    if json:
        print_json({"generation": now.generation, "shards": now.size, "before": before.size, "sizes": now.sizes})
    elif before.size == now.size:
        say(f"the ring has {now.size} shards already: nothing was changed")
    else:
        say(f"the ring has {now.size} shards now; it had {before.size}. Zones that have jobs stay where they are")
