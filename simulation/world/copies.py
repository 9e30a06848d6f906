"""Copies of the bucket in the middle of everything: raw ones, that somebody uses, and backups, that are restored.

What is done to a copy is not in the history. If it reaches the original, something happened there that nobody asked
for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from casque.broker.broker import Broker
from casque.client.opening import Parts
from casque.client.payloads import BytesCodec
from casque.client.queue import Queue
from casque.clock import Random
from casque.codec.archive import ARCHIVE, parse_key
from casque.codec.head import KEY
from casque.codec.ring import RingHead, decode_ring, shard_prefix
from casque.environment import Environment
from casque.errors import (
    CasqueError,
    CorruptQueueError,
    NoLeaderError,
    QueueCopiedError,
    QueueLedError,
    StorageError,
    UnsafeStoreError,
)
from casque.journal.copying import LIFT, Copied, Copier
from casque.journal.verify import Verifier
from casque.state import State
from casque.storage.port import Stored, place_of
from simulation.world.asked import IN_A_COPY
from simulation.world.broker import SETTINGS
from simulation.world.bucket import Bucket
from simulation.world.history import History
from simulation.world.invariants import Invariant, Violation
from simulation.world.line import Line, PlacedLine
from simulation.world.ring import RingHistory
from simulation.world.server import remote_queue
from simulation.world.steps import same_content

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life
    from simulation.world.world import World

TORN = 0.3
"""The share of copies that are made object by object, while the queue is in use."""
PATIENCE_S = 6.0
"""How long somebody waits for a broker to lead a copy."""

_Objects = Mapping[str, Stored]
_Judge = Callable[[_Objects], None]


class Place:
    """A bucket beside the original."""

    def __init__(self, world: World, judge: _Judge | None = None) -> None:
        """`judge` is asked when there is a queue: whatever has a `queue.json` is whole."""
        world.places += 1
        self.name = f"place{world.places}"
        self.bucket = Bucket(self._landed, self._deleted)
        self._world = world
        self._judge = judge

    def line(self, life: Life) -> Line:
        return PlacedLine(self.bucket, life, Random(f"{life.world.seed}/{life.name}/{self.name}"), self.name)

    def _landed(self, key: str, sender: Life) -> None:
        self._world.trace.note(sender.name, f"landed {key} in {self.name}")
        if key == KEY and self._judge is not None:
            judge, self._judge = self._judge, None
            with self._world.watching():
                judge(self.bucket.objects)

    def _deleted(self, key: str, sender: Life) -> None:
        self._world.trace.note(sender.name, f"deleted {key} in {self.name}")


class Copies:
    """Those that one process makes and uses."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/copies")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._copy(), self._back_up()]

    # --- Raw copies ---

    async def _copy(self) -> None:
        """As `cp -r` or a tool of the cloud does it: the head of the copy names whoever leads the original."""
        uses = [self._by_its_head, self._embedded, *([] if self._world.layout.ring else [self._lead])]
        while await self._crew.pause(2.0):
            if KEY in self._world.bucket.objects:
                place = Place(self._world)
                torn = await self._fill(place)
                await self._rng.choice(uses)(place, torn)

    async def _fill(self, place: Place) -> bool:
        """Whether things went on meanwhile: then it may be a queue, or may be none."""
        objects, torn = self._world.bucket.objects, self._rng.random() < TORN
        for key in sorted(objects):
            if key in objects:
                place.bucket.objects[key] = objects[key]
            if torn:
                await self._life.clock.sleep(self._rng.uniform(0.0, 0.01))
        return torn

    async def _by_its_head(self, place: Place, torn: bool) -> None:
        """Whoever goes where the head of a copy points ends up at the original."""
        remote = remote_queue(self._life, place.name, place.line(self._life))
        error = await self._use(Queue(self._env(), BytesCodec(), remote=remote), place, torn)
        self._demand(
            isinstance(error, (QueueCopiedError, NoLeaderError, StorageError)) or torn,
            lambda: f"a call through the head of {place.name} ended with {error!r}",
        )

    async def _embedded(self, place: Place, torn: bool) -> None:
        led = not self._world.layout.ring and self._owner(place) is not None
        error = await self._use(Queue(self._parts(place), BytesCodec()), place, torn)
        self._demand(
            not led or error is not None, lambda: f"{place.name} was written, and its head names another as the leader"
        )

    async def _use(self, queue: Queue[bytes], place: Place, torn: bool) -> CasqueError | None:
        """Add a job, and do some harm; with what error the first of it ended."""
        rng, known = self._rng, self._world.known
        harm: list[Callable[[], Awaitable[object]]] = [
            queue.purge,
            queue.pause,
            lambda: queue.requeue_stale(0.0),
            lambda: queue.cancel(rng.choice(known.jobs or ["nothing"])),
        ]
        try:
            async with queue:
                error = await self._tried(lambda: self._add(queue, place, torn), torn)
                for ask in rng.sample(harm, 2):
                    await self._tried(ask, torn)
        except CasqueError as closed:
            self._check_error(closed, torn)
            error = closed
        self._world.trace.note(self._life.name, f"{place.name}: {type(error).__name__}")
        return error

    async def _tried(self, ask: Callable[[], Awaitable[object]], torn: bool) -> CasqueError | None:
        try:
            await ask()
        except CasqueError as error:
            self._check_error(error, torn)
            return error
        return None

    async def _add(self, queue: Queue[bytes], place: Place, torn: bool) -> None:
        added = await queue.enqueue("mail", IN_A_COPY)
        self._check_there(place, added.id, torn)

    async def _lead(self, place: Place, torn: bool) -> None:
        """`casque serve` on a copy."""
        life, parts = self._life, self._parts(place)
        broker = Broker(
            parts.committer(),
            parts,
            address=f"{life.node.name}:{place.name}",
            settings=SETTINGS,
            staging=parts.staging(),
            place=partial(place_of, parts.store, make=True),
        )
        running = asyncio.create_task(broker.run())
        try:
            for _ in range(int(PATIENCE_S / 0.2)):
                await life.clock.sleep(0.2)
                if running.done() or await self._is_led(broker, place, torn):
                    break
        finally:
            broker.stop()
            with_error = (await asyncio.gather(running, return_exceptions=True))[0]
        if isinstance(with_error, CasqueError):
            self._check_error(with_error, torn)
        elif with_error is not None:
            raise with_error

    async def _is_led(self, broker: Broker, place: Place, torn: bool) -> bool:
        try:
            service = broker.service()
        except NoLeaderError:
            return False
        except QueueLedError as error:
            with self._world.watching():
                detail = f"the broker of {place.name} sends its callers elsewhere: {error}"
                raise Violation(Invariant.COPIED, detail) from error
        queue = Queue(self._env(), BytesCodec())
        queue._embedded = service  # noqa: SLF001
        try:
            await self._add(queue, place, torn)
            for job in await queue.dequeue(batch_size=2):
                await queue.ack(job.id, job.token)
        except CasqueError as error:
            self._check_error(error, torn)
        return True

    # --- Backups ---

    async def _back_up(self) -> None:
        while await self._crew.pause(3.0):
            if KEY not in self._world.bucket.objects:
                continue
            history = self._world.history
            backup = Place(self._world, self._had)
            landed = history.position
            copied = await self._copied(self._life.line, backup)
            if copied is None:
                continue
            self._demand(
                copied.position >= landed or history.is_ring,
                lambda: f"{backup.name} is of position {copied.position}, and {landed} had landed before it began",  # noqa: B023
            )
            if await self._verified(backup) and self._rng.random() < 0.5:
                await self._restore(backup)

    async def _restore(self, backup: Place) -> None:
        """To a place where the queue goes on, beside the original."""
        restored = Place(self._world, partial(self._same, backup.bucket.objects))
        if await self._copied(backup.line(self._life), restored, lift=LIFT) is not None:
            error = await self._use(Queue(self._parts(restored), BytesCodec()), restored, torn=False)
            self._demand(
                not isinstance(error, (QueueCopiedError, QueueLedError)),
                lambda: f"{restored.name} was restored, and is led by another: {error!r}",
            )

    async def _copied(self, source: Line, target: Place, lift: int = 0) -> Copied | None:
        try:
            return await Copier(source, target.line(self._life), self._env(), lift=lift).copy()
        except CasqueError as error:
            self._check_error(error)
            self._world.trace.note(self._life.name, f"{target.name} was not made: {type(error).__name__}")
            return None

    async def _verified(self, backup: Place) -> bool:
        try:
            await Verifier(backup.line(self._life), self._env()).verify()
        except CasqueError as error:
            self._check_error(error)
            return False
        return True

    def _env(self) -> Environment:
        return Environment(self._world.profile.settings, self._life.clock, self._rng)

    # --- Judging ---

    def _had(self, objects: _Objects) -> None:
        """What is a queue there is one that the original was at some moment."""
        history = self._world.history
        if isinstance(history, RingHistory):
            root, shards = self._shards(objects)
            for token in range(root.shards):
                if token in shards:
                    self._had_so(f"shard {token}", history.shards[token], shards[token])
            self._demand_whole(root, shards)
        else:
            self._had_so("the queue", history, objects)
            self._check_archive(objects, self._recovered(objects).archived)

    def _check_archive(self, objects: _Objects, archived: int) -> None:
        for key in self._world.bucket.objects:
            parsed = parse_key(key) if key.startswith(ARCHIVE) else None
            self._demand(
                parsed is None or parsed[1].last > archived or key in objects,
                lambda: f"a copy knows that {key} is archived, and has not got it",  # noqa: B023
            )

    def _had_so(self, what: str, history: History, objects: _Objects) -> None:
        state = self._recovered(objects)
        was = history.states.get(state.position)
        self._demand(
            was is None or same_content(was, state), lambda: f"{what} never was what its copy is: {state.position}"
        )
        for job in state.jobs.values():
            blob = job.spec.blob
            self._demand(
                blob is None or (blob in objects and objects[blob].body == history.blobs[blob]),
                lambda: f"the copy of job {job.id[:8]} has lost its payload {blob}",  # noqa: B023
            )

    def _same(self, backup: _Objects, objects: _Objects) -> None:
        pairs = [(backup, objects)]
        if self._world.layout.ring:
            (_, before), (root, after) = self._shards(backup), self._shards(objects)
            self._demand_whole(root, after)
            pairs = [(before[token], after[token]) for token in range(root.shards)]
        for one, other in pairs:
            self._demand(
                same_content(self._recovered(one), self._recovered(other)), lambda: "what was restored is another queue"
            )

    def _demand_whole(self, root: RingHead, shards: Mapping[int, _Objects]) -> None:
        states = [self._recovered(shards[token]) for token in sorted(shards)]
        zones = [zone for state in states for zone in state.zone_jobs.keys() | state.zone_leases.keys()]
        self._demand(
            len(states) == root.shards and len(zones) == len(set(zones)),
            lambda: f"the copy of a ring of {root.shards} shards has {len(states)}, with the zones {sorted(zones)}",
        )

    def _shards(self, objects: _Objects) -> tuple[RingHead, dict[int, dict[str, Stored]]]:
        root = decode_ring(objects[KEY].body)
        shards = {
            token: {key.removeprefix(below): stored for key, stored in objects.items() if key.startswith(below)}
            for token in range(root.shards)
            for below in [f"{shard_prefix(token)}/"]
        }
        return root, {token: own for token, own in shards.items() if KEY in own}

    def _recovered(self, objects: _Objects) -> State:
        try:
            return self._world.layout.recover(objects)
        except CorruptQueueError as error:
            raise Violation(Invariant.COPIED, f"what was copied cannot be read: {error}") from error

    def _check_there(self, place: Place, job_id: str, torn: bool) -> None:
        if torn or self._world.layout.ring:
            return  # which shard it is in takes a ring to tell
        with self._world.watching():
            there = job_id in self._recovered(place.bucket.objects).jobs
        self._demand(there, lambda: f"a job was added to {place.name}, and it is not there")

    def _check_error(self, error: CasqueError, torn: bool = False) -> None:
        self._demand(
            torn or not isinstance(error, (CorruptQueueError, UnsafeStoreError)),
            lambda: f"a sound copy met {error!r}",
        )

    def _demand(self, holds: bool, detail: Callable[[], str]) -> None:
        with self._world.watching():
            self._world.history.demand(holds, Invariant.COPIED, detail)

    def _parts(self, place: Place) -> Parts:
        world = self._world
        rng = Random(f"{world.seed}/{self._life.name}/{place.name}/parts")
        line = place.line(self._life)
        return Parts(line, world.profile.settings, clock=self._life.clock, rng=rng, **world.layout.parts)

    def _owner(self, place: Place) -> object | None:
        return self._world.layout.leader(place.bucket.objects[KEY].body)[1]
