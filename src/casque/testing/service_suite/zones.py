"""Zones take turns, have rules and can be leased; FIFO zones keep their order."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from casque.errors import InvalidInputError, ZoneLeaseLostError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LARGE, LONG_S, YEAR_9999_MS, a_job
from casque.types import PeekedZone, ZoneLease, ZoneRules, ZoneStanding


class ZoneTests:
    async def test_zones_take_turns_and_can_be_claimed_by_name(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.enqueue([a_job(b"%d" % n, zone="giant") for n in range(50)])
        await other.enqueue([a_job(b"small", zone="small"), a_job(b"without a zone")])

        first = await service.dequeue(entrypoints=None, limit=4)
        assert {job.spec.zone for job in first[:3]} == {"giant", "small", None}
        [named] = await other.dequeue(entrypoints=("task",), limit=1, zones=("small", "giant"))
        assert named.spec.zone == "giant"
        assert await service.dequeue(entrypoints=None, limit=5, zones=("small", "nowhere")) == []
        waiting = asyncio.ensure_future(other.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zones=("late",)))
        await service.enqueue([a_job(b"other", zone="small"), a_job(b"awaited", zone="late")])
        assert [job.spec.payload for job in await waiting] == [b"awaited"]

    async def test_the_rules_of_a_zone_hold_and_are_shown(self, service: QueueService, other: QueueService) -> None:
        rules = ZoneRules(weight=2.5, running_max=2, per_second=500.0)
        await service.set_zone("acme", rules, request_id="rules-1")
        await service.enqueue([a_job(b"%d" % n, zone="acme") for n in range(5)])
        await service.enqueue([a_job(b"later", zone="zeta", run_at_ms=YEAR_9999_MS)])

        claimed = await other.dequeue(entrypoints=None, limit=10)
        assert len(claimed) == 2
        [acme, zeta] = await other.zones()
        assert acme == ZoneStanding("acme", ready=3, running=2, next_ms=claimed[0].due_ms, rules=rules)
        assert zeta == ZoneStanding("zeta", delayed=1, next_ms=YEAR_9999_MS)
        assert await service.zones(names=frozenset({"zeta", "no-such-zone"})) == [zeta]
        assert await service.zones(limit=1) == [acme]

        await service.set_zone("acme", ZoneRules(paused=True))
        await other.set_zone("acme", rules, request_id="rules-1")  # it was asked for before, and changes nothing
        for job in claimed:
            await service.ack(job.id, token=job.token)
        assert await service.dequeue(entrypoints=None, limit=10) == []
        await service.set_zone("acme", ZoneRules())
        assert len(await service.dequeue(entrypoints=None, limit=10)) == 3

    async def test_a_leased_zone_is_for_whoever_shows_the_lease(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.enqueue([a_job(b"%d" % n, zone="acme") for n in range(3)])
        await service.enqueue([a_job(b"other", zone="zeta")])

        lease = await service.lease_zone("acme", lease_ms=60_000, worker="w1")

        assert lease is not None
        assert (lease.zone, lease.lease_ms, lease.worker) == ("acme", 60_000, "w1")
        assert await other.lease_zone("acme") is None
        [anybodys] = await other.dequeue(entrypoints=None, limit=10)
        assert anybodys.spec.zone == "zeta"
        assert await other.dequeue(entrypoints=None, limit=10, zones=("acme",)) == []
        mine = await service.dequeue(entrypoints=("task",), limit=2, zone_lease=lease)
        assert [job.spec.payload for job in mine] == [b"0", b"1"]
        [standing] = await other.zones(names=frozenset({"acme"}))
        assert standing.lease == lease

        await service.release_zone("acme", token=lease.token)
        await service.release_zone("acme", token=lease.token)
        with pytest.raises(ZoneLeaseLostError) as lost:
            await service.dequeue(entrypoints=None, limit=1, zone_lease=lease)
        assert (lost.value.zone, lost.value.token) == ("acme", lease.token)
        [rest] = await other.dequeue(entrypoints=None, limit=10)
        assert rest.spec.payload == b"2"
        for job in (*mine, rest):
            await service.ack(job.id, token=job.token)  # what was claimed under it stays claimed

    async def test_a_lease_of_a_zone_is_renewed_and_lost_by_its_token(
        self, service: QueueService, other: QueueService
    ) -> None:
        assert await service.lease_zone("acme") is None  # it has no jobs
        await service.enqueue([a_job(b"1", zone="acme")])
        lease = await service.lease_zone("acme", request_id="lease-1")
        assert lease is not None
        assert await other.lease_zone("acme", request_id="lease-1") == lease

        beaten = await other.heartbeat_zone("acme", token=lease.token)
        assert (beaten.token, beaten.beat_ms > lease.beat_ms) == (lease.token, True)
        with pytest.raises(ZoneLeaseLostError):
            await service.heartbeat_zone("acme", token=LARGE)
        await other.release_zone("acme", token=LARGE)
        assert (await service.heartbeat_zone("acme", token=lease.token)).token == lease.token

        await service.release_zone("acme", token=lease.token)
        again = await other.lease_zone("acme")
        assert again is not None
        assert again.token > lease.token
        assert await service.lease_zone("acme", request_id="lease-1") is None  # what it gave is over
        with pytest.raises(ZoneLeaseLostError):
            await service.heartbeat_zone("acme", token=lease.token)

    async def test_zones_are_peeked_at_by_vesting_time(self, service: QueueService, other: QueueService) -> None:
        assert await service.peek_zones() == []
        for zone in ("b", "a", "held", "taken"):
            await service.enqueue([a_job(b"1", zone=zone, fifo=zone == "a"), a_job(b"2", zone=zone, fifo=zone == "a")])
        await service.enqueue([a_job(b"1", zone="late", run_at_ms=YEAR_9999_MS), a_job(b"without a zone")])
        await service.enqueue([msgspec.structs.replace(a_job(b"1", zone="elsewhere"), entrypoint="other")])
        await service.set_zone("held", ZoneRules(paused=True))
        lease = await service.lease_zone("taken")
        assert lease is not None

        seen = await other.peek_zones(entrypoints=("task",))

        due = {one.zone: one for one in seen if one.due}
        assert sorted(due) == ["a", "b"]
        assert [one.next_ms for one in seen] == sorted(one.next_ms for one in seen)
        assert (due["a"].fifo, due["b"].fifo) == (True, False)
        assert seen[-1] == PeekedZone("late", YEAR_9999_MS, due=False)
        assert {one.zone for one in await other.peek_zones()} == {"a", "b", "late", "elsewhere"}
        assert [one.zone for one in await other.peek_zones(names=frozenset({"b", "taken"}))] == ["b"]
        assert len(await other.peek_zones(limit=1)) == 1
        await service.release_zone("taken", token=lease.token)
        assert "taken" in {one.zone for one in await other.peek_zones()}

    async def test_whoever_waits_with_a_lost_lease_is_told(self, service: QueueService, other: QueueService) -> None:
        await service.enqueue([a_job(b"1", zone="acme")])
        lease = await service.lease_zone("acme")
        assert lease is not None
        [job] = await service.dequeue(entrypoints=None, limit=1, zone_lease=lease)
        await service.ack(job.id, token=job.token)
        waiting = asyncio.ensure_future(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zone_lease=lease))
        await other.enqueue([a_job(b"2", zone="acme")])
        [job] = await waiting
        assert job.spec.payload == b"2"
        waiting = asyncio.ensure_future(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zone_lease=lease))
        await other.release_zone("acme", token=lease.token)
        with pytest.raises(ZoneLeaseLostError):
            await waiting

    async def test_a_lease_of_a_zone_that_is_none_is_refused(self, service: QueueService) -> None:
        stranger = ZoneLease("acme", 7, 1_000)
        with pytest.raises(ZoneLeaseLostError):
            await service.dequeue(entrypoints=None, limit=1, zone_lease=stranger)
        await service.release_zone("acme", token=7)

    async def test_a_fifo_zone_hands_out_one_job_after_the_other(self, service: QueueService) -> None:
        first, second = a_job(b"1", zone="line", fifo=True, priority=5), a_job(b"2", zone="line", fifo=True)
        [added, _] = await service.enqueue([first, second])
        assert added.spec == first
        [job] = await service.dequeue(entrypoints=None, limit=10)
        assert (job.id, job.spec.fifo) == (first.id, True)
        await service.nack(job.id, token=job.token)
        [job] = await service.dequeue(entrypoints=None, limit=10, wait_s=LONG_S)
        assert job.id == first.id
        await service.ack(job.id, token=job.token)
        [job] = await service.dequeue(entrypoints=None, limit=10)
        assert job.id == second.id
        with pytest.raises(InvalidInputError, match="is FIFO"):
            await service.enqueue([a_job(b"3", zone="line")])
        with pytest.raises(InvalidInputError, match="delayed"):
            await service.enqueue([a_job(b"3", zone="line", fifo=True, run_at_ms=YEAR_9999_MS)])
        [line] = await service.zones()
        assert line == ZoneStanding("line", running=1, fifo=True)
