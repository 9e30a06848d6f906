"""Mistakes with leases of zones and with large payloads, each made for the length of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from casque.client.queue import Queue
from casque.codec.log import View
from casque.codec.staged import StagedJobs, encode_staged
from casque.engine import staging
from casque.engine.blobs import Blobs
from casque.engine.zone_watch import ZoneWatch
from casque.journal import archive, document
from casque.journal.log import archiver
from casque.service.requests import LeaseZone, ReleaseZone
from casque.state import State
from casque.state.events import ZoneLeased
from casque.state.zone_leases import ZoneLeaseFacet
from casque.state.zone_limits import ZoneLimits
from casque.storage.port import Store
from casque.types import Finished, JobSpec, ZoneLease
from tests.simulation.log_mutations import without


def leased_zones_served_to_everybody(patch: pytest.MonkeyPatch) -> None:
    waits = ZoneLimits.waits

    def generous(self: ZoneLimits, zone: str, now_ms: int, *, holds: bool = False) -> bool:
        return waits(self, zone, now_ms, holds=True)

    patch.setattr(ZoneLimits, "waits", generous)


def zone_leases_kept_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ZoneWatch, "due", lambda self, now_ms, state: [])


def zone_leases_cut_short(patch: pytest.MonkeyPatch) -> None:
    note = ZoneWatch.note

    def hasty(self: ZoneWatch, zones: Iterable[str], state: State, now_ms: int) -> None:
        note(self, zones, state, now_ms - 700)

    patch.setattr(ZoneWatch, "note", hasty)


def zones_leased_twice(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks is given the zone, also if somebody has it."""

    def lease_zone(self: ZoneLeaseFacet, state: State, c: LeaseZone, now_ms: int) -> ZoneLease | None:
        if c.zone not in state.zone_jobs or c.lease_ms is None:
            return None
        state.happen(ZoneLeased(c.zone, state.counters.tokens + 1, c.lease_ms, c.worker), now_ms)
        return self.by_zone[c.zone]

    patch.setattr(ZoneLeaseFacet, "lease_zone", lease_zone)


def tokens_of_zones_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ZoneLeaseFacet, "has", lambda self, zone, token: zone in self.by_zone)


def releases_answered_and_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    def release(self: ZoneLeaseFacet, state: State, c: ReleaseZone, now_ms: int) -> None:
        """It runs out some day."""

    patch.setattr(ZoneLeaseFacet, "release_zone", release)


def snapshots_forget_leases_of_zones(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return without(of(state, tip), "zone_leases")

    patch.setattr(View, "of", staticmethod(forgetful))


# --- Large payloads ---


def payloads_of_dead_jobs_dropped(patch: pytest.MonkeyPatch) -> None:
    """They are archived like others, and may be given fresh attempts."""
    write = archive.write_range

    async def thorough(store: Store, patience: Any, range_: Any, finished: Sequence[Finished], forms: Any) -> None:
        await write(store, patience, range_, finished, forms)
        for one in archive._between(finished, range_):
            if one.job.spec.blob is not None:
                await store.delete(one.job.spec.blob)

    for module in (document, archiver, archive):
        patch.setattr(module, "write_range", thorough, raising=False)


def payloads_written_after_their_jobs(patch: pytest.MonkeyPatch) -> None:
    put = Blobs.put

    async def later(self: Blobs, specs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
        create = self._create
        written: list[tuple[str, bytes]] = []

        async def note(key: str, body: bytes) -> None:
            written.append((key, body))

        self._create = note  # type: ignore[method-assign]
        try:
            return await put(self, specs)
        finally:
            self._create = create  # type: ignore[method-assign]

    patch.setattr(Blobs, "put", later)


def staged_jobs_lose_their_place_in_the_line(patch: pytest.MonkeyPatch) -> None:
    """A part is written without saying that its jobs are of FIFO zones."""

    def forgetful(jobs: StagedJobs) -> bytes:
        return encode_staged(msgspec.structs.replace(jobs, fifo=False))

    patch.setattr(staging, "encode_staged", forgetful)


def zones_released_behind_their_holders(patch: pytest.MonkeyPatch) -> None:
    """Every lease of a zone is released as if its caller had left."""
    lease_zone = Queue.lease_zone

    async def hasty(self: Queue[Any], zone: str, **options: Any) -> ZoneLease | None:
        lease = await lease_zone(self, zone, **options)
        if lease is not None:
            granted: asyncio.Future[ZoneLease | None] = asyncio.get_running_loop().create_future()
            granted.set_result(lease)
            self._releasing.start(self._release_unseen(granted))
        return lease

    patch.setattr(Queue, "lease_zone", hasty)
