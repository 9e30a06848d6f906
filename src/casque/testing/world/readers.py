"""Those who read in a simulated process through brokers: they follow the events, list the jobs and read the archive.

What they are shown comes over the real streams (`Watch`, `List`, `Archive`), through failovers and lost connections,
and is held against what has landed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec

from casque.clock import Random
from casque.codec.archive import archived_jobs, hour_of
from casque.codec.log import Segment
from casque.engine import feed
from casque.errors import CasqueError, CorruptQueueError, HistoryGoneError, InvalidInputError, QueueClosedError
from casque.service import ArchivedJob, QueueEvent
from casque.state import Admitted, Event, State
from casque.state.events import subject
from casque.testing.world.history import History
from casque.testing.world.invariants import Invariant, Violation
from casque.transport.grpc import unpacking
from casque.types import Finished, JobRecord, JobState, from_ms

if TYPE_CHECKING:
    from casque.client.queue import Queue
    from casque.testing.world.crew import Crew
    from casque.testing.world.life import Life

PAUSE_S = 0.5
END = 1 << 62
"""An index behind all events of a commit."""
BACK = (0, 0, 1, 4, 12, 40)
"""From how many commits ago somebody reads."""
LISTED: tuple[frozenset[JobState] | None, ...] = (
    None,
    None,
    frozenset({JobState.READY, JobState.DELAYED}),
    frozenset({JobState.RUNNING}),
    frozenset({JobState.DEAD, JobState.RUNNING}),
)
"""Which of a delayed and a ready job one is depends on a clock: they are asked for together."""
ARCHIVED: tuple[frozenset[JobState] | None, ...] = (
    None,
    None,
    frozenset({JobState.DONE}),
    frozenset({JobState.DEAD, JobState.CANCELLED}),
)


class Readers:
    """Those of one process."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._world = life.world
        self._rng = Random(f"{life.world.seed}/{life.name}/readers")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        followers = [self._follow, self._follow, self._read_up] if self._world.layout.followed else []
        return [self._begin(role) for role in (*followers, self._list, self._read_archive)]

    async def _begin(self, role: Callable[[Queue[bytes]], Awaitable[None]]) -> None:
        """With a connection of its own, as a program has that only reads, or with one that others use as well."""
        if self._rng.random() < 0.3:
            await role(self._life.queue)
            return
        async with self._life.visitor().queue as queue:
            await role(queue)

    # --- Events ---

    async def _follow(self, queue: Queue[bytes]) -> None:
        """From now on, or from a while ago, for as long as the process lives. Some take their time."""
        pace_s = self._rng.choice((0.0, 0.0, 0.2))
        while True:
            reader = Reader(self._world.history, self._somewhere())
            self._world.followers[reader] = self._life
            try:
                await self._keep_following(queue, reader, pace_s)
                return
            except HistoryGoneError as error:
                self.check_gone(reader, error)
            finally:
                del self._world.followers[reader]

    async def _keep_following(self, queue: Queue[bytes], reader: Reader, pace_s: float) -> None:
        while True:
            try:
                async with aclosing(queue.events(from_position=reader.asks())) as events:
                    async for event in events:
                        self.take(reader, event)
                        await self._think(pace_s)
            except HistoryGoneError:
                raise
            except QueueClosedError:
                return
            except CasqueError as error:
                await self.refused("follows", error)

    async def _read_up(self, queue: Queue[bytes]) -> None:
        """Up to the end of the log, again and again."""
        history, pace_s = self._world.history, self._rng.choice((0.0, 0.1))
        while await self._crew.pause(1.0):
            reader, landed = Reader(history, max(0, history.position - self._rng.choice(BACK))), history.position
            try:
                async with aclosing(queue.events(from_position=reader.asks(), follow=False)) as events:
                    async for event in events:
                        self.take(reader, event)
                        await self._think(pace_s)
            except HistoryGoneError as error:
                self.check_gone(reader, error)
            except CasqueError as error:
                await self.refused("reads events", error)
            else:
                with self._world.watching():
                    left = reader.next(landed)
                    history.demand(
                        left is None,
                        Invariant.FOLLOWED,
                        lambda: f"{self._life.name} was told that this is the end, before {left}",  # noqa: B023
                    )

    async def _think(self, pace_s: float) -> None:
        if pace_s and not self._world.healed:
            await self._life.clock.sleep(self._rng.expovariate(1 / pace_s))

    def _somewhere(self) -> int | None:
        back = self._rng.choice((None, *BACK))
        return None if back is None else max(0, self._world.history.position - back)

    def take(self, reader: Reader, event: QueueEvent) -> None:
        with self._world.watching():
            reader.take(event, self._life.name)

    def check_gone(self, reader: Reader, error: HistoryGoneError) -> None:
        """It says so, and that is true."""
        world = self._world
        floor = world.layout.collected(world.bucket.objects)
        with world.watching():
            world.history.demand(
                reader.begin is None or floor > reader.begin,
                Invariant.FOLLOWED,
                lambda: f"{self._life.name} heard that {error}, and what follows {reader.begin} is there",
            )

    # --- Jobs ---

    async def _list(self, queue: Queue[bytes]) -> None:
        history, rng = self._world.history, self._rng
        while await self._crew.pause(0.7):
            states, entrypoint = rng.choice(LISTED), rng.choice((None, None, "mail"))
            limit, after = rng.choice((None, None, 3)), 0
            known = [job.sequence for job in history.state.jobs.values()]
            if known and rng.random() < 0.3:
                after = rng.choice(known)
            landed = history.position
            try:
                jobs = await queue.jobs(states=states, entrypoint=entrypoint, limit=limit, after=after)
            except CasqueError as error:
                await self.refused("lists jobs", error)
                continue

            def shown(records: list[JobRecord]) -> list[JobRecord]:
                fits = [
                    job
                    for job in records
                    if job.sequence > after  # noqa: B023
                    and entrypoint in (None, job.spec.entrypoint)  # noqa: B023
                    and (states is None or job.state in states)  # noqa: B023
                ]
                return fits[:limit]  # noqa: B023

            self._check_listed([job.record for job in jobs], shown, landed)

    def _check_listed(
        self, jobs: list[JobRecord], shown: Callable[[list[JobRecord]], list[JobRecord]], landed: int
    ) -> None:
        history = self._world.history
        if landed and landed not in history.states:
            return  # it took so long that nobody remembers what there was
        found = [_bare(job) for job in jobs]
        shown_ids = {job.id for job in jobs}

        def seen(records: list[JobRecord]) -> list[JobRecord]:
            """Without large ones that ended while their payloads were read."""
            return [
                _bare(job)
                for job in shown(records)
                if job.spec.blob is None or job.id in shown_ids or job.id in history.state.jobs
            ]

        with self._world.watching():
            history.demand(
                any(found == seen(records) for records in _states_since(history, landed)),
                Invariant.SHOWN,
                lambda: (
                    f"{self._life.name} was shown {[job.id[:8] for job in jobs]}, and from {landed} to"
                    f" {history.position} that was never so"
                ),
            )
            for job in jobs:
                expected = history.payloads.get(job.id)
                history.demand(
                    expected is None or job.spec.payload == expected,
                    Invariant.PAYLOADS,
                    lambda: f"{self._life.name} was shown job {job.id[:8]} with {job.spec.payload!r}: {expected!r}",  # noqa: B023
                )

    # --- The archive ---

    async def _read_archive(self, queue: Queue[bytes]) -> None:
        world, rng = self._world, self._rng
        while await self._crew.pause(1.5):
            states, entrypoint = rng.choice(ARCHIVED), rng.choice((None, None, "mail"))
            moments = sorted(
                from_ms(one.at_ms)
                for one in rng.sample(world.shelves().finished, min(2, len(world.shelves().finished)))
            )
            since = moments[0] if moments and rng.random() < 0.3 else None
            until = moments[-1] if moments and rng.random() < 0.3 else None
            must, jobs, whole = world.shelves().archived, list[ArchivedJob](), False
            asked = {"since": since, "until": until, "entrypoint": entrypoint, "states": states}
            try:
                async with aclosing(queue.archive(**asked)) as archive:  # type: ignore[arg-type]
                    async for job in archive:
                        jobs.append(job)
                whole = True
            except CasqueError as error:
                await self.refused("reads the archive", error)

            def wanted(one: Finished) -> bool:
                at = from_ms(one.at_ms)
                return (
                    (since is None or at >= since)  # noqa: B023
                    and (until is None or at < until)  # noqa: B023
                    and entrypoint in (None, one.job.spec.entrypoint)  # noqa: B023
                    and (states is None or one.state in states)  # noqa: B023
                )

            self._check_archive(jobs, [one for one in world.shelves().finished if wanted(one)], must, whole=whole)

    def _check_archive(self, jobs: list[ArchivedJob], wanted: list[Finished], must: int, *, whole: bool) -> None:
        """Each is one that was finished, in order and once. Between them, and up to the end of an answer that was
        whole, nothing is left out that had been archived, up to the position `must`, when it was asked for."""
        h, name = self._world.history, self._life.name
        wanted.sort(key=lambda one: (hour_of(one.at_ms), one.position))
        expected = archived_jobs(wanted)
        at = 0
        with self._world.watching():
            for job in jobs:
                skipped = at
                while at < len(expected) and expected[at] != job:
                    at += 1
                h.demand(
                    at < len(expected),
                    Invariant.SHOWN,
                    lambda: f"{name} read {job.id[:8]} of {job.position}, which is wrong or out of order",  # noqa: B023
                )
                left_out = [one.position for one in wanted[skipped:at] if one.position <= must]
                h.demand(
                    not left_out,
                    Invariant.SHOWN,
                    lambda: f"{name} read the archive without what was finished by {left_out}",  # noqa: B023
                )
                at += 1
            left_out = [one.position for one in wanted[at:] if whole and one.position <= must]
            h.demand(
                not left_out,
                Invariant.SHOWN,
                lambda: f"{name} read the archive to its end without what was finished by {left_out}",
            )

    # --- Refusals ---

    async def refused(self, who: str, error: CasqueError) -> None:
        self._world.trace.note(self._life.name, f"somebody {who}: {type(error).__name__}")
        if isinstance(error, (CorruptQueueError, InvalidInputError)):
            with self._world.watching():
                raise Violation(Invariant.EXPECTED, f"somebody in {self._life.name} {who} and met {error!r}")
        await self._life.clock.sleep(self._rng.expovariate(1 / PAUSE_S))


class Reader:
    """How far somebody has read."""

    def __init__(self, history: History, begin: int | None) -> None:
        self._h = history
        self.begin = begin
        """Where to go on if it has to ask again: the last commit may have been cut in the middle, so it is read again.
        None while nothing was shown to somebody who reads from now on."""
        self._last: tuple[int, int] | None = None
        """The commit and the index of the last event of this answer; None while it is not known where it begins."""
        self._landed = 0

    def asks(self) -> int | None:
        """From which position."""
        self._last = None if self.begin is None else (self.begin, END)
        self._landed = self._h.position
        return self.begin

    @property
    def behind(self) -> tuple[int, int] | None:
        """The first event that it has not seen, if there is one."""
        return self.next(self._h.position)

    def next(self, until: int) -> tuple[int, int] | None:
        """What comes next, up to this commit."""
        if self._last is None:
            return None
        position, index = self._last
        if index + 1 < len(_events(self._h, position)):
            return position, index + 1
        return next(((later, 0) for later in range(position + 1, until + 1) if _events(self._h, later)), None)

    def take(self, event: QueueEvent, name: str) -> None:
        h, place = self._h, (event.position, event.index)
        if self._last is None:
            h.demand(
                event.position > self._landed and event.index == 0,
                Invariant.FOLLOWED,
                lambda: f"{name} follows from now on, {self._landed}, and begins with {place}",
            )
        else:
            expected = self.next(h.position)
            h.demand(
                place == expected, Invariant.FOLLOWED, lambda: f"{name} is shown {place}, and {expected} comes next"
            )
        self._last, self.begin = place, event.position - 1
        made = _as_shown(h.segments[event.position], event.index)
        h.demand(event == made, Invariant.FOLLOWED, lambda: f"{name} is shown {event}, and what happened is {made}")


def _events(history: History, position: int) -> list[Event]:
    return history.segments[position].events if position in history.segments else []


def _as_shown(commit: Segment, index: int) -> QueueEvent:
    """As it comes over the wire."""
    event = commit.events[index]
    kind, fields = feed._kind(event), feed._fields(event)  # noqa: SLF001
    made = QueueEvent(commit.position, index, from_ms(commit.at), kind, subject(event), fields)
    [shown] = unpacking.events(msgspec.msgpack.encode([made]))
    return shown


def _states_since(history: History, landed: int) -> Iterator[list[JobRecord]]:
    """All jobs at this position and at every step from there on: a look in the middle of a batch sees what the calls
    before it in the batch have done."""
    state = deepcopy(history.states[landed]) if landed else State()
    yield list(state.listed())
    for position in range(landed + 1, history.position + 1):
        commit = history.segments[position]
        for events in _steps(commit.events):
            state.replay(events, writer=commit.writer, batch=commit.batch, at_ms=commit.at)
            yield list(state.listed())


def _steps(events: list[Event]) -> Iterator[list[Event]]:
    """Event by event, but an admission with all of its jobs."""
    at = 0
    while at < len(events):
        event = events[at]
        end = at + 1 + (event.added if isinstance(event, Admitted) else 0)
        yield events[at:end]
        at = end


def _bare(job: JobRecord) -> JobRecord:
    """Without its payload, which lies beside the queue if it is large, and is read later."""
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, payload=b"", blob=None, blob_bytes=0))
