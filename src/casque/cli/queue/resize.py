"""`casque queue resize`: change the number of shards of a ring."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import answer
from casque.cli.target import BucketTarget, short_lived
from casque.client.connecting import through_brokers
from casque.client.opening import SHARDS_MAX, Parts
from casque.client.queue import DEFAULTS
from casque.storage.port import Store


@command(
    "queue resize",
    examples=[
        "casque queue resize s3://bucket/tenants --shards 64",
        "casque queue resize file:///var/lib/tenants --shards 8 --json",
    ],
    audited=True,
)
def resize(
    target: BucketTarget,
    shards: Annotated[int, typer.Option("--shards", min=1, max=SHARDS_MAX, help="How many the ring has from now on.")],
    json: Json = False,
) -> None:
    """Change how many shards a ring has, while it is used. Nothing moves: a zone stays where its jobs are until it has
    run empty, and comes back where the new size wants it. Surplus shards run empty and take nothing new.

    Processes that have the ring open notice within about a second. Shards that brokers lead are changed through them,
    with the token in CASQUE_PEER_TOKEN where they ask for one. If nothing is left where only earlier sizes would look
    for it, this is noted too, and a process that has the ring open for a quarter of an hour then forgets them.

    Exit code 0: it has this size, now or already. 1: it is damaged. 2: it is no ring, or it cannot be asked.
    """

    async def work(store: Store) -> dict[str, Any]:
        place = target.resolve()
        parts = Parts(store, DEFAULTS.with_changes(short_lived(place)))
        builder = parts.builder(through_brokers(parts, tls=place.tls))
        before = await builder.tidy()
        now = await builder.resize(shards)
        return {"generation": now.generation, "shards": now.size, "before": before.size, "sizes": now.sizes}

    done = target.run_on_store(work)
    now, before = done["shards"], done["before"]
    answer(
        done,
        f"the ring has {now} shards already: nothing was changed"
        if before == now
        else f"the ring has {now} shards now; it had {before}. Zones that have jobs stay where they are",
        json=json,
    )
