"""Claims jobs from shard after shard.

Every call starts one shard further than the one before it, from a random first one: so no shard is left out, and
processes that were started together soon spread. A call that its first shard does not satisfy asks all others at once
whether they have jobs; a call that may wait waits at all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from casque.environment import Environment
from casque.errors import CasqueError
from casque.ring.numbers import inner, record_of
from casque.ring.shards import ANSWER_S, LOOK_MS, Shard, Shards, in_time
from casque.service import QueueService
from casque.service.requests import AskKnown, Dequeue, HasDue
from casque.tasks import Background
from casque.telemetry import logger
from casque.types import JobRecord

log = logger("ring")


class Walker:
    """Goes round the ring."""

    def __init__(self, shards: Shards, env: Environment) -> None:
        self._shards = shards
        self._clock = env.clock
        self._turn = env.rng.getrandbits(32)
        self._returning = Background()

    async def dequeue(self, asked: Dequeue) -> list[JobRecord]:
        ends_ms = self._clock.monotonic_ms() + int(asked.wait_s * 1000)
        unasked: set[int] = set()
        if asked.request_id is not None and not asked.first:
            again = await self._claimed_before(asked, asked.request_id, unasked)
            if again is not None:
                return again
        while True:
            changed = self._shards.changed
            shards = await self._from_next(asked.zones)
            claimed = await self._claim(shards, asked)
            left_ms = ends_ms - self._clock.monotonic_ms()
            if claimed or left_ms <= 0:
                return claimed
            claimed = await self._wait(shards, asked, left_ms / 1000, changed, unasked)
            if claimed or self._clock.monotonic_ms() >= ends_ms:
                return claimed

    async def close(self) -> None:
        """Give back claims first that will not be processed."""
        await self._returning.ended()

    async def _from_next(self, zones: tuple[str, ...] | None) -> list[Shard]:
        if zones is None:
            shards = await self._shards.walked()
        else:
            head = self._shards.recent()
            shards = await self._shards.several(sorted({token for zone in zones for token in head.homes(zone)}))
        self._turn += 1
        first = self._turn % len(shards)
        # Shards without a leader come last: the others have jobs as well.
        return sorted(shards[first:] + shards[:first], key=lambda shard: shard.away)

    async def _claimed_before(
        self, asked: Dequeue, request_id: str, unasked: set[int] | None = None
    ) -> list[JobRecord] | None:
        """A repeated request gets the jobs that it was given before, in whichever shard, as far as it still holds them,
        which may be none. None: no shard has given it any. Shards without a leader are not waited for: jobs that they
        gave go to another caller when the lease ends. Their tokens are added to `unasked`."""

        async def answered(shard: Shard) -> bool:
            return (await shard.at_once(lambda one: one.call(AskKnown(of_request=request_id)))).request

        there = await self._of_those_there(await self._shards.walked(), answered, unasked)
        if not there:
            return None
        answers = await asyncio.gather(*(self._at(shard, asked, asked.limit) for shard in there))
        return [job for some in answers for job in some]

    # --- At once ---

    async def _claim(self, shards: Sequence[Shard], asked: Dequeue) -> list[JobRecord]:
        """From the first shard; if that is not enough, from the others that have jobs."""
        claimed: list[JobRecord] = []
        try:
            others = await self._claim_first(shards, asked, claimed)
            if len(claimed) < asked.limit and others:
                for shard in await self._with_work(others, asked):
                    claimed += await self._at_once(shard, asked, asked.limit - len(claimed))
                    if len(claimed) >= asked.limit:
                        break
        except CasqueError as error:
            # Return the jobs that were claimed; the next call raises the error, if it persists.
            if not claimed:
                raise
            log.warning("a shard could not be asked for jobs: %s", error)
        except BaseException:
            self._give_back(claimed, asked)
            raise
        return claimed

    async def _claim_first(self, shards: Sequence[Shard], asked: Dequeue, claimed: list[JobRecord]) -> Sequence[Shard]:
        """From the first shard that answers; returns those after it. If none does, the error says why."""
        for number, shard in enumerate(shards, 1):
            try:
                claimed += await self._at_once(shard, asked, asked.limit)
                return shards[number:]
            except CasqueError as error:
                if not shard.is_away(error) or number == len(shards):
                    raise
        return ()

    async def _at_once(self, shard: Shard, asked: Dequeue, limit: int) -> list[JobRecord]:
        # If its leader dies during the call, jobs that it may have claimed are not given back: the caller may repeat
        # the request, here or through another broker, and get the same jobs. Otherwise their leases run out.
        return await shard.at_once(lambda one: self._at(shard, asked, limit, of=one))

    async def _with_work(self, shards: Sequence[Shard], asked: Dequeue) -> list[Shard]:
        return await self._of_those_there(
            shards, lambda shard: shard.at_once(lambda one: one.call(HasDue(asked.entrypoints, asked.zones)))
        )

    async def _of_those_there(
        self, shards: Sequence[Shard], ask: Callable[[Shard], Awaitable[bool]], unasked: set[int] | None = None
    ) -> list[Shard]:
        """The shards that say yes, of those that can be asked just now."""
        there: list[Shard] = []
        # Only shards that may lack a leader have a time limit: elsewhere a slow answer is as good as a quick one.
        seconds = ANSWER_S if any(shard.can_be_missed for shard in shards) else None
        asked = await in_time(map(ask, shards), clock=self._clock, seconds=seconds)
        for shard, answer in zip(shards, asked, strict=True):
            if answer.done() and (error := answer.exception()) is None:
                there += [shard] if answer.result() else []
                continue
            if not answer.done():
                answer.cancel()  # it hangs; a read changes nothing
            elif error is not None and not shard.is_away(error):
                raise error
            if unasked is not None:
                unasked.add(shard.token)
        return there

    async def _at(
        self, shard: Shard, asked: Dequeue, limit: int, wait_s: float = 0.0, of: QueueService | None = None
    ) -> list[JobRecord]:
        own = msgspec.structs.replace(asked, limit=limit, wait_s=wait_s, first=False)
        claimed = await (of or shard.service).call(own)
        return [record_of(job, shard.token) for job in claimed]

    # --- Waiting ---

    async def _wait(
        self, shards: Sequence[Shard], asked: Dequeue, wait_s: float, changed: asyncio.Event, unasked: set[int]
    ) -> list[JobRecord]:
        """Wait at all shards at once, until one of them has jobs, or the ring changes. `unasked` are those that could
        not
        say whether they gave jobs to an earlier attempt."""
        there = [shard for shard in shards if not shard.away]
        waiting = {asyncio.create_task(self._at(shard, asked, asked.limit, wait_s)): shard for shard in there}
        away = [shard for shard in shards if shard not in there]
        watching = asyncio.create_task(self._watch(changed, away, self._clock.monotonic_ms() + wait_s * 1000))
        over: set[asyncio.Task[list[JobRecord]]] = set()
        try:
            # Without a shard to wait at, until one that was away is back.
            while (len(over) < len(waiting) or not waiting) and not watching.done():
                if any(_has_something(one) for one in over):
                    break
                left = waiting.keys() - over
                done, _ = await asyncio.wait({*left, watching}, return_when=asyncio.FIRST_COMPLETED)
                over |= left & done
        except BaseException:
            self._give_back(await _ended(waiting, watching), asked)
            raise
        claimed = await _ended(waiting, watching)
        own = {(job.id, job.token) for job in claimed}
        if asked.request_id is not None:
            # A cancelled wait may have claimed jobs at the last moment, unknown to us. The jobs of another attempt come
            # first: its caller may have received them, and no caller has received those claimed here.
            again = await self._claimed_before(asked, asked.request_id) or []
            claimed = [*(job for job in again if (job.id, job.token) not in own), *claimed]
        failed = [(shard, one.exception()) for one, shard in waiting.items() if not one.cancelled()]
        for shard, error in failed:
            if error is not None and not claimed and not shard.is_away(error):
                raise error
        surplus = claimed[asked.limit :]
        self._give_back(surplus, asked)
        if asked.request_id is not None:
            # Before the answer: a repeated request must get the same jobs, and not these as well.
            await self._shards.give_back(job for job in surplus if _was_claimed_here(job, unasked))
        return claimed[: asked.limit]

    async def _watch(self, changed: asyncio.Event, away: list[Shard], until_ms: float) -> None:
        """Ends when the ring changes, when a shard that had no leader is back, or some time after all should have
        answered: one that lost its leader meanwhile would wait for the next."""
        while not changed.is_set() and self._clock.monotonic_ms() < until_ms + LOOK_MS:
            left_ms = until_ms + LOOK_MS - self._clock.monotonic_ms()
            await self._clock.sleep(min(LOOK_MS, left_ms) / 1000)
            with suppress(CasqueError):
                await self._shards.refresh()
            if away and await self._of_those_there(away, _is_there):
                return

    def _give_back(self, jobs: Sequence[JobRecord], asked: Dequeue) -> None:
        """Give back claims that reach no caller. Those with a request id stay: a repeated request gets them."""
        if jobs and asked.request_id is None:
            self._returning.start(self._shards.give_back(jobs))


async def _ended(waiting: dict[asyncio.Task[list[JobRecord]], Shard], watching: asyncio.Task[None]) -> list[JobRecord]:
    """Cancel all waits, and return the jobs that they got by then."""
    for task in (*waiting, watching):
        task.cancel()
    await asyncio.gather(*waiting, watching, return_exceptions=True)
    return [job for task in waiting if _has_something(task) for job in task.result()]


async def _is_there(shard: Shard) -> bool:
    await shard.at_once(lambda one: one.known(()))
    return True


def _was_claimed_here(job: JobRecord, unasked: set[int]) -> bool:
    """False if it may have been given to an earlier attempt, whose caller may be running it: a shard that could not be
    asked before answers with what it gave then."""
    return inner(job.token)[1] not in unasked


def _has_something(task: asyncio.Task[list[JobRecord]]) -> bool:
    return not task.cancelled() and (task.exception() is None and bool(task.result()))
