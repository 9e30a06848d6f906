"""Rules of the ring and of zones, each dropped in the real code for the length of a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from functools import wraps

import msgspec
import pytest

from casque.codec.ring import RingHead
from casque.errors import JobNotFoundError, UnknownOutcomeError, ZoneMovedError
from casque.ring import admitter, building, forgetting, service, walker
from casque.ring.building import Builder
from casque.ring.enqueuer import Enqueuer
from casque.ring.forgetting import Forgetting
from casque.ring.root import Root
from casque.ring.service import RingService
from casque.ring.shards import Shard
from casque.ring.walker import Walker
from casque.service.requests import Dequeue, Enqueue, Request, SetGate, SetZone
from casque.state import State, adding
from casque.state.fair import FairIndex
from casque.state.ring import Places, RingView, home, is_home
from casque.state.setting_marks import SettingMarks
from casque.state.zone_limits import ZoneLimits
from casque.state.zone_lines import FifoLine
from casque.types import PLAIN_RULES, JobRecord, JobSpec, JobState


def home_compared_without_the_generation(patch: pytest.MonkeyPatch) -> None:
    """A ring that grows and shrinks back has the same homes again."""
    _making(patch, lambda ring, place, _generation: is_home(ring, place))


def zones_made_for_callers_with_an_old_ring(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes from an older ring is believed."""
    _making(patch, lambda ring, place, generation: generation < ring.generation or is_home(ring, place))


def _making(patch: pytest.MonkeyPatch, may: Callable[[RingView, str, int], bool]) -> None:
    def check(
        self: Places, ring: RingView, specs: Iterable[JobSpec], *, request_id: str | None, generation: int
    ) -> None:
        for spec in specs:
            place = spec.zone or spec.key or request_id
            if place is None:
                if ring.token >= ring.size:
                    raise ZoneMovedError(None, ring.generation)
            elif (
                spec.zone not in self.zones
                and (spec.zone or spec.key not in self.keys)
                and not may(ring, place, generation)
            ):
                raise ZoneMovedError(spec.zone, ring.generation)

    patch.setattr(Places, "check", check)


def old_homes_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Jobs go where the newest ring wants them, wherever their zone is."""

    async def candidates(self: Enqueuer, place: str, head: RingHead, request_id: str | None) -> list[int]:
        return [home(place, head.size)]

    patch.setattr(Enqueuer, "_candidates", candidates)


def request_ids_not_looked_for_in_old_homes(patch: pytest.MonkeyPatch) -> None:
    """Whoever adds looks where the zone is, and adds there: a request may have been carried out where it was before."""

    async def candidates(self: Enqueuer, place: str, head: RingHead, request_id: str | None) -> list[int]:
        *older, newest = head.homes(place)
        for token in older:
            shard = await self._shards.adopted(token, head)
            if shard is None or (await shard.service.known(places=((True, place), (False, place)))).places:
                return [token, newest]
        return [newest]

    patch.setattr(Enqueuer, "_candidates", candidates)


def zones_with_dead_jobs_alone_count_as_gone(patch: pytest.MonkeyPatch) -> None:
    _counting(patch, lambda job: job.state is not JobState.DEAD)


def zones_whose_last_job_is_running_count_as_gone(patch: pytest.MonkeyPatch) -> None:
    """Nothing of it waits."""
    _counting(patch, lambda job: job.state in (JobState.READY, JobState.DELAYED))


def _counting(patch: pytest.MonkeyPatch, counts: Callable[[JobRecord], bool]) -> None:
    enqueue = adding.enqueue

    @wraps(enqueue)  # the state calls what carries out its commands by name
    def hasty(state: State, c: Enqueue, now_ms: int) -> tuple[JobRecord, ...]:
        here = {job.spec.zone for job in state.jobs.values() if counts(job)}
        held, state.places.zones = state.places.zones, {z: n for z, n in state.places.zones.items() if z in here}
        try:
            return enqueue(state, c, now_ms)
        finally:
            state.places.zones = held

    patch.setattr(adding, "enqueue", hasty)


def old_sizes_forgotten_while_zones_are_there(patch: pytest.MonkeyPatch) -> None:
    async def misplaced(self: Builder, shard: Shard, head: RingHead) -> bool:
        await shard.adopt(head)
        return False

    patch.setattr(Builder, "_misplaced", misplaced)


def old_sizes_forgotten_without_telling_the_shards(patch: pytest.MonkeyPatch) -> None:
    """Nothing is misplaced now; but whoever knows the old ring may still make it so."""

    async def misplaced(self: Builder, shard: Shard, head: RingHead) -> bool:
        state = await self._read(shard.token)
        return state.places.misplaced(RingView(head.generation, head.size, shard.token), len(state.jobs)) > 0

    patch.setattr(Builder, "_misplaced", misplaced)


# --- Zones of any queue ---


def fifo_zones_that_go_on_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A job that waits to be tried again lets the others pass."""
    head = FifoLine.head

    def hasty(self: FifoLine, jobs: dict[str, JobRecord]) -> JobRecord | None:
        held, self.held = self.held, 0
        try:
            return head(self, jobs)
        finally:
            self.held = held

    patch.setattr(FifoLine, "head", hasty)


def fifo_zones_that_several_work_on(patch: pytest.MonkeyPatch) -> None:
    head = FifoLine.head

    def hasty(self: FifoLine, jobs: dict[str, JobRecord]) -> JobRecord | None:
        running, self.running = self.running, 0
        try:
            return head(self, jobs)
        finally:
            self.running = running

    patch.setattr(FifoLine, "head", hasty)


def running_jobs_of_a_zone_not_counted(patch: pytest.MonkeyPatch) -> None:
    waits = ZoneLimits.waits

    def generous(self: ZoneLimits, zone: str, now_ms: int, *, holds: bool = False) -> bool:
        running, self.running = self.running, {}
        try:
            return waits(self, zone, now_ms, holds=holds)
        finally:
            self.running = running

    patch.setattr(ZoneLimits, "waits", generous)


def paused_zones_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ZoneLimits, "waits", lambda self, zone, now_ms, holds=False: False)


# --- What earlier seeds found, and is mended ---


def rules_not_copied_to_shards_that_are_added(patch: pytest.MonkeyPatch) -> None:
    async def copy_settings(self: Builder, tokens: Iterable[int]) -> None:
        """They will be set again."""

    patch.setattr(Builder, "_copy_settings", copy_settings)


def rules_copied_over_newer_ones(patch: pytest.MonkeyPatch) -> None:
    """What the first shard knew when it was asked, whatever has been set since."""

    async def follow(self: Builder, shard: Shard) -> None:
        _, zones = building._settings(await self._read(0))
        _, known = building._settings(await self._read(shard.token))
        for zone in known | zones:
            await shard.service.set_zone(zone, zones.get(zone, PLAIN_RULES))

    patch.setattr(Builder, "_follow", follow)


def settings_copied_whatever_was_written_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SettingMarks, "is_written_since", lambda self, name, position, begins: False)


def shards_take_jobs_before_they_have_the_settings(patch: pytest.MonkeyPatch) -> None:
    """They are copied when the ring has its new size."""
    resize, copy_settings = Builder.resize, Builder._copy_settings

    async def later(tokens: Iterable[int]) -> None:
        pass

    async def eager(self: Builder, shards: int) -> RingHead:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_copy_settings", later)
            head = await resize(self, shards)
        await copy_settings(self, range(1, head.shards))
        return head

    patch.setattr(Builder, "resize", eager)


def repeated_dequeues_claim_anew_when_theirs_are_settled(patch: pytest.MonkeyPatch) -> None:
    claimed_before = Walker._claimed_before

    async def forgetful(
        self: Walker, asked: Dequeue, request_id: str, unasked: set[int] | None = None
    ) -> list[JobRecord] | None:
        return await claimed_before(self, asked, request_id, unasked) or None

    patch.setattr(Walker, "_claimed_before", forgetful)


def set_in_the_first_shard_and_called_failed(patch: pytest.MonkeyPatch) -> None:
    everywhere = RingService._everywhere

    async def frank(self: RingService, request: SetGate | SetZone) -> None:
        try:
            await everywhere(self, request)
        except UnknownOutcomeError as error:
            raise error.__cause__ or error from None

    patch.setattr(RingService, "_everywhere", frank)


def new_shards_not_looked_for_after_a_setting(patch: pytest.MonkeyPatch) -> None:
    async def everywhere(self: RingService, request: Request[None]) -> None:
        first, *others = await self._shards.every()
        await first.service.call(request)
        await service._all(one.service.call(request) for one in others)

    patch.setattr(RingService, "_everywhere", everywhere)


def running_jobs_of_a_fifo_zone_not_counted_by_its_limit(patch: pytest.MonkeyPatch) -> None:
    """A limit that comes while one of them runs counts it for ever, if the zone is used in the other way afterwards."""
    started = FairIndex.started

    def forgetful(self: FairIndex, record: JobRecord, by: int = 1) -> None:
        zone = record.spec.zone
        counted = self.limits.running.get(zone) if record.spec.fifo and zone is not None else None
        started(self, record, by)
        if counted is not None and zone is not None and zone in self.limits.running:
            self.limits.running[zone] = counted

    patch.setattr(FairIndex, "started", forgetful)


# --- What trials broke, and is mended ---


def leases_of_zones_not_counted_by_those_who_add(patch: pytest.MonkeyPatch) -> None:
    """A shard without jobs of a leased zone takes none, and another one makes the zone."""

    def holds(self: Places, name: str, *, is_zone: bool) -> bool:
        return name in self.zones if is_zone else name in self.keys

    patch.setattr(Places, "holds", holds)


def surplus_claims_taken_from_whoever_was_told_of_them(patch: pytest.MonkeyPatch) -> None:
    """What a shard says that could not be asked before is taken for new, and goes back if it is too much."""
    patch.setattr(walker, "_was_claimed_here", lambda _job, _unasked: True)


def roots_changed_on_a_version_that_another_task_has_read(patch: pytest.MonkeyPatch) -> None:
    """Two tasks share what was read last, and one of them decides on what was there before."""
    read = Root._read

    async def mixed(self: Root) -> tuple[RingHead, str]:
        head, _ = await read(self)
        assert self._known is not None
        return head, self._known[1]

    patch.setattr(Root, "_read", mixed)


def leases_of_zones_not_counted_by_those_who_admit(patch: pytest.MonkeyPatch) -> None:
    """As it was: a batch does not go where its zone is leased and empty, and the newest home makes the zone again."""
    held = admitter._held

    async def careless(shard: Shard, places: Collection[tuple[bool, str]]) -> AsyncGenerator[tuple[bool, str]]:
        async for is_zone, name in held(shard, places):
            known = await shard.service.zones(names=frozenset({name})) if is_zone else []
            if not is_zone or any(one.ready + one.delayed + one.running + one.dead for one in known):
                yield is_zone, name

    patch.setattr(admitter, "_held", careless)


def jobs_looked_for_before_requests(patch: pytest.MonkeyPatch) -> None:
    """As it was: a repeated request without a token goes to a shard with a job of that id, which may be another job,
    and not to the shard that remembers the request."""
    holder = RingService._holder

    async def hasty(
        self: RingService, job_id: str, token: int | None, request_id: str | None
    ) -> tuple[Shard, int | None]:
        try:
            return await holder(self, job_id, token, None)
        except JobNotFoundError:
            return await holder(self, job_id, token, request_id)

    patch.setattr(RingService, "_holder", hasty)


def times_of_two_machines_compared_by_those_who_forget_sizes(patch: pytest.MonkeyPatch) -> None:
    """One machine wrote when the shards were clear, another reads its own clock."""

    def is_time(self: Forgetting, head: RingHead) -> bool:
        if len(head.sizes) == 1 or head.cleared_at is msgspec.UNSET:
            return False
        return self._clock.wall_ms() - head.cleared_at >= forgetting.SETTLED_MS

    patch.setattr(Forgetting, "is_time", is_time)
