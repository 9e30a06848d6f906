"""Tenants of a simulated queue: each behind a border of its own, all with the same names for their jobs and keys."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING

from casque.service import QueueEvent
from casque.transport.border import Border
from casque.transport.scopes import Principal, Scope
from casque.transport.tenants import prefix
from casque.types import JobRecord, JobSpec
from simulation.world.asked import Send, Through
from simulation.world.invariants import Invariant

if TYPE_CHECKING:
    from simulation.world.life import Life

TENANTS = ("globex", "initech")
OWNER, HEIR, NAMESAKE = "soylent", "wonka", "stark"
"""Jobs of the second and third get names that a job of the first had. A ring of several shards has them elsewhere."""
RENAMED = frozenset({*TENANTS, OWNER, HEIR, NAMESAKE})
"""Zones in which the name of a job that has ended may be that of another one."""
PASSED_ON = {HEIR: Invariant.TENANTS, NAMESAKE: Invariant.ONE_EFFECT}
"""What is broken if a job of these leaves and no request since it came explains it."""


class Orders:
    """The next name that each tenant chooses: the first one is the same for all of them, and so is every other."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def next(self, zone: str) -> str:
        self._numbers[zone] += 1
        return f"order-{self._numbers[zone]}"


def border(through: Through, zone: str) -> Border:
    principal = Principal(zone, frozenset({Scope.ADMIN}), zones=frozenset({zone}))
    return Border(through.queue._service, principal)  # noqa: SLF001


def order(zone: str, name: str, entrypoint: str, key: str | None, number: int, request_id: str | None) -> Send:
    spec = JobSpec(name, entrypoint, b"%d:0" % number, max_attempts=2, key=key, zone=zone)

    async def send(through: Through) -> list[JobRecord]:
        return list(await border(through, zone).enqueue([spec], request_id=request_id))

    return send


async def peep(life: Life, zone: str, job_id: str) -> None:
    """Look at all that a tenant can see, also for a job that is another's, and judge it."""
    tenant, history = border(life, zone), life.world.history
    found = await tenant.find(job_id)
    jobs = [*await tenant.jobs(), *([found] if found is not None else [])]
    zones = {one.spec.zone for one in jobs} | {one.zone for one in await tenant.zones()}
    zones |= {one.zone for one in await tenant.peek_zones()}
    with life.world.watching():
        history.demand(
            zones <= {zone}, Invariant.TENANTS, lambda: f"the tenant {zone} is shown {sorted(map(str, zones))}"
        )
    events: list[QueueEvent] = []
    if life.world.layout.followed:
        begin = max(0, (await tenant.stats()).position - life.world.profile.looked_back)
        async with aclosing(tenant.events(from_position=begin, follow=False)) as feed:
            events = [event async for event in feed]
    strange = [event.job_id for event in events if not str(event.job_id).startswith(prefix(zone))]
    with life.world.watching():
        history.demand(not strange, Invariant.TENANTS, lambda: f"the tenant {zone} is shown events of {strange[:3]}")
