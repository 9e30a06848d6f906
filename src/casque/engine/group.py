"""The group commit loop: one task, one write in flight, all calls that arrive meanwhile in the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Any

from casque.clock import Timer, yield_once
from casque.engine.announcements import Announcements
from casque.engine.commit_pace import CommitPace
from casque.engine.committer import Committer
from casque.engine.operation import Look, Operation, UnexpectedError
from casque.engine.pulse import Pulse
from casque.engine.reaper import TICK_MS, Reaper
from casque.engine.ticker import APART_MS, LOOK_MS, Ticker
from casque.engine.visit import Visit
from casque.engine.waiting import Parked, Waiting
from casque.environment import Environment
from casque.errors import CasqueError, QueueClosedError, UnknownOutcomeError
from casque.service.requests import Dequeue, GiveBack
from casque.settings import milliseconds
from casque.state import Admit, Command, Expire, Lapse, ReturnUnseen, State, Watch
from casque.telemetry import logger
from casque.types import JobRecord, Reach

log = logger("engine")


class GroupCommit:
    """Batches concurrent calls into single writes.

    Callers that wait for a job are parked here; they cost the store only a conditional read now and then. A job that
    arrives is claimed for them in the same commit that adds it.
    """

    def __init__(self, committer: Committer, env: Environment) -> None:
        self._committer = committer
        self._settings = env.settings
        self._clock = env.clock
        self._rng = env.rng
        self._reaper = Reaper(env)
        self._visit = Visit(env.clock)
        self._only_looked = True
        self._ticker = Ticker()
        self._apart_ms: int | None = None
        self._pending: deque[Operation] = deque()
        self._owed: list[Operation] = []
        self._parked = Parked()
        self._wake = asyncio.Event()
        self._announcements = Announcements(committer, env.clock, self._parked, self._wake)
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._failed = False
        self._timer: Timer | None = None
        self._poll_at_ms: int | None = None
        self._poll_delay_ms = milliseconds(env.settings.poll_min)
        self._rest_until_ms = 0
        self._pace = CommitPace(env)
        self._budget = env.budget
        self._maintenance: asyncio.Task[None] | None = None
        self._upkeep_is_put_off = False
        self._beat: asyncio.Future[None] | None = None
        self.pulse = Pulse()

    # --- Life ---

    async def start(self) -> None:
        """Load the queue and start the loop."""
        await self._committer.open()
        # Watch existing leases from now on, whatever earlier processes saw of them.
        self._committer.news()
        self._reaper.resync(self._committer.state)
        self._visit.begin(self._committer.state)
        self._task = asyncio.create_task(self._run(), name="casque group commit")
        self._wake.set()

    async def stop(self) -> None:
        """Finish pending calls, within the drain limit; then every caller has an answer."""
        task = self._task
        if task is None or self._closing:
            return
        self._closing = True
        self._answer_all_parked()
        self._wake.set()
        limit = asyncio.create_task(self._clock.sleep(self._settings.drain_limit.total_seconds()))
        leaving = asyncio.create_task(self._leave(task), name="casque wind-up")
        try:
            await asyncio.wait({leaving, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending = [leaving, task, limit, *([self._maintenance] if self._maintenance is not None else [])]
            for one in ending:
                one.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    # --- Leading ---

    async def beat(self) -> None:
        """Renew the leadership between two commits, unless a commit has done so by then.

        Raises:
            LeadershipLostError: another process leads.
            StorageError: the renewal was not written.
        """
        if self._beat is None:
            self._beat = self._future()
            # Mark the exception as retrieved: the caller may be gone by then.
            self._beat.add_done_callback(lambda beat: beat.cancelled() or beat.exception())
            self._wake.set()
        await asyncio.shield(self._beat)

    async def _show_life(self, beat: asyncio.Future[None]) -> None:
        try:
            await self._committer.beat()
        except CasqueError as error:
            beat.set_exception(error)
        except Exception as error:
            log.exception("a heartbeat of the leader failed unexpectedly; the queue is read again")
            self._committer.begin_anew()
            beat.set_exception(error)
        except BaseException as error:
            beat.set_exception(_unfinished(error))
            raise
        else:
            beat.set_result(None)

    async def _leave(self, task: asyncio.Task[None]) -> None:
        """Answer every caller; then archive finished jobs, unless other writers are active."""
        await asyncio.wait({task})
        if self._maintenance is not None:
            await asyncio.wait({self._maintenance})
        if self._failed:
            return
        await self._record_visit()
        try:
            await self._committer.wind_up()
        except CasqueError as error:
            log.warning("finished jobs could not be archived; the next process to open the queue will do it: %s", error)

    async def _record_visit(self) -> None:
        """Record what this process saw of leases whose holders may be dead, for later processes."""
        state = self._committer.known
        if state is None or self._only_looked or self._committer.leads:
            return
        if seen := self._visit.worth_recording(state):
            try:
                await self._committer.commit(lambda state, now_ms: state.execute(Watch(seen), now_ms))
            except CasqueError as error:
                log.debug("what was seen of %d leases could not be recorded: %s", len(seen), error)

    # --- Calls ---

    # Plain functions where only the answer is awaited: with a thousand callers, every coroutine between them and their
    # answer is a thousand more objects for the garbage collector to visit.

    def execute(self, command: Command, reach: Reach | None = None) -> Awaitable[Any]:
        return self._submit(Operation(self._future(), command, None, reach))

    def look(self, look: Look) -> Awaitable[Any]:
        return self._submit(Operation(self._future(), None, look))

    async def dequeue(self, command: Dequeue, *, wait_s: float) -> Any:
        """Claim jobs; wait up to `wait_s` for a first one."""
        if wait_s <= 0:
            return await self.execute(command)
        operation = Waiting(self._future(), command)
        timer = self._clock.call_later(wait_s, lambda: self._give_up(operation))
        try:
            return await self._carry_out(operation)
        finally:
            timer.cancel()
            self._parked.discard(operation)  # the caller no longer waits

    def _submit(self, operation: Operation) -> Awaitable[Any]:
        if type(operation.command) is Dequeue or self._is_full():
            return self._carry_out(operation)
        return self._admit(operation)

    async def _carry_out(self, operation: Operation) -> Any:
        if self._is_full():
            await self._wait_for_room()
        answer = self._admit(operation)
        try:
            return await answer
        except asyncio.CancelledError:
            # Cancelled after the answer and before the caller could take it: the claims never reach it.
            if type(operation.command) is Dequeue and operation.succeeded:
                self._return_claims(operation)
            raise

    def _future(self) -> asyncio.Future[Any]:
        # The task knows the loop; asking for the running one is a system call on some versions of Python.
        return self._working().get_loop().create_future()

    def _working(self) -> asyncio.Task[None]:
        if self._task is None or self._closing:
            raise QueueClosedError("the queue is not open; use it inside `async with`")
        return self._task

    def _admit(self, operation: Operation) -> asyncio.Future[Any]:
        self._working()
        assert operation.future is not None
        if operation.command is not None:
            self._only_looked = False
        self._pending.append(operation)
        if len(self._pending) == 1 or operation.look is not None or not self._pace.waits:
            self._wake.set()  # others wait for the end of the window, which has its timer
        return operation.future

    def _is_full(self) -> bool:
        return len(self._pending) >= self._settings.buffer_max

    async def _wait_for_room(self) -> None:
        while self._is_full() and not self._closing:
            self._room.clear()
            await self._room.wait()

    # --- The loop ---

    async def _run(self) -> None:
        ending: BaseException = QueueClosedError("the queue was closed before this call was carried out")
        try:
            while not (self._closing and not self._pending):
                await self._wake.wait()
                self._wake.clear()
                self._reaper.awake()
                self._visit.awake()
                while self._may_take() or self._beat is not None or self._something_is_due():
                    if self._may_take() or self._beat is None:
                        written = self._committer.batches
                        await self._turn(self._take())
                        if self._committer.batches != written:
                            self._pace.wrote()
                    if (beat := self._beat) is not None:
                        self._beat = None
                        await self._show_life(beat)
                    # Let callers that were just answered ask again before the next batch is taken. Otherwise callers
                    # fall into two groups that never meet, and each pays for the other's write as well as its own.
                    await yield_once()
                if self._upkeep_is_put_off and not self._closing and self._committer.known is not None:
                    self._maintain()
                self._set_timer()
        except Exception as error:
            # A bug in the loop itself, which its turns cannot raise: no caller may be left waiting.
            log.exception("the commit loop failed; the queue is closed")
            ending = error
            self._failed = True
        finally:
            self._closing = True
            if self._timer is not None:
                self._timer.cancel()
            self._announcements.stop_listening()
            self._room.set()
            for operation in self._pending:
                operation.fail(ending)
            self._pending.clear()
            if self._beat is not None and not self._beat.done():
                self._beat.set_exception(ending)
            self._answer_all_parked()
            self.pulse.end()

    async def _turn(self, batch: list[Operation]) -> None:
        asked = any(operation.future is not None for operation in batch)
        try:
            expired = self._reaper.due(self._committer.known)
            if not asked and (expired or self._moment_may_be_handled_elsewhere()):
                # A lease that looks expired may have been renewed through another process: read before taking it back.
                # And reading shows whether another process has handled a tick, which is cheaper than a write that
                # loses.
                await self._committer.refresh()
                self._take_note()
                expired = self._reaper.due(self._committer.known)
            if expired:
                batch.append(Operation(None, Expire(expired)))
            await self._committer.commit(lambda state, now: self._decide(batch, state, now))
            self._take_note()
            self.pulse.beat(self._committer.state.position)
            self._maintain()
            self._reaper.acted_on(expired, self._committer.state)
        except CasqueError as error:
            self._turn_failed(batch, error, asked=asked)
        except Exception as error:
            # A broken invariant or a bug, which stopped at an unknown point. It costs this batch, not the queue: the
            # state in memory is dropped, and the next batch reads the store.
            log.exception("a commit failed unexpectedly; the queue is read again")
            self._committer.begin_anew()
            unknown = UnknownOutcomeError(f"the commit of this call failed unexpectedly ({error!r}); read back first")
            unknown.__cause__ = error
            self._turn_failed(batch, unknown, asked=asked)
        except BaseException as error:
            for operation in batch:
                operation.fail(_unfinished(error))
            raise
        else:
            if any(operation.broken and operation.future is None for operation in batch):
                self._rest_until_ms = self._clock.monotonic_ms() + milliseconds(self._settings.poll_max)
            self._pace_polling(found=self._settle(batch))
            if asked:
                self._announcements.follow_rivals()
            if not self._closing:
                await self._committer.hold()

    def _may_take(self) -> bool:
        """Whether a caller is to be served now. Reads do not wait for the window between two writes."""
        if not self._pending or not self._is_paced:
            return bool(self._pending)
        return any(operation.look is not None for operation in self._pending)

    @property
    def _is_paced(self) -> bool:
        return self._pace.waits and not self._closing

    def _take(self) -> list[Operation]:
        """The next batch: the callers that waited longest, without those that have left."""
        if self._is_paced:
            return self._take_reads()
        pending = self._pending
        batch, self._owed, self._announcements.latest = self._owed, [], 0
        limit = self._settings.batch_max
        while pending and len(batch) < limit:
            operation = pending.popleft()
            if not operation.abandoned:
                batch.append(operation)
        if not self._room.is_set():
            self._room.set()
        return batch

    def _take_reads(self) -> list[Operation]:
        reads = [operation for operation in self._pending if operation.look is not None]
        self._pending = deque(operation for operation in self._pending if operation.look is None)
        return [operation for operation in reads if not operation.abandoned]

    def _decide(self, batch: list[Operation], state: State, now_ms: int) -> None:
        if state.schedules and self._settings.ticks:
            # First: a waiting caller gets the job of a tick in the same commit.
            for tick in self._ticker.due(state, now_ms):
                ticking = Operation(None, tick)
                try:
                    ticking.decide(state, now_ms)
                except UnexpectedError:
                    self._ticker.silence(tick.name)
                    raise
        if self._settings.ticks and (lapse_ms := state.next_lapse_ms()) is not None and lapse_ms <= now_ms:
            Operation(None, Lapse()).decide(state, now_ms)
        waiting_now: list[Waiting] = []
        admissions: list[Operation] = []
        for operation in batch:
            if type(operation.command) is Admit:
                admissions.append(operation)
                continue
            operation.decide(state, now_ms)
            if type(operation) is Waiting:
                waiting_now.append(operation)
        for operation in self._parked.served(state, now_ms):
            batch.append(operation)
            operation.decide(state, now_ms)
        for operation in waiting_now:
            # The caller asked before this batch added the job.
            assert isinstance(operation.command, Dequeue)
            command = operation.command
            if operation.goes_on_waiting and state.has_due(
                command.entrypoints, now_ms, command.zones, command.zone_lease
            ):
                operation.decide(state, now_ms)
        # Last: no call of this batch needs their jobs, which the state adds once the commit has landed.
        for operation in admissions:
            operation.decide(state, now_ms)

    def _settle(self, batch: list[Operation]) -> bool:
        """Answer all callers except those that keep waiting. True if a waiting caller got a job."""
        found = False
        for operation in batch:
            if type(operation) is Waiting:
                if operation.goes_on_waiting and not self._closing:
                    self._parked.add(operation)
                    continue
                found = found or bool(operation.answer)
            if not operation.settle() and type(operation.command) is Dequeue and operation.error is None:
                self._return_claims(operation)
        if any(type(operation.command) is Admit for operation in batch) and self._parked:
            self._pending.append(Operation(None, None))  # waiting callers have not seen these jobs yet
        return found

    def _return_claims(self, operation: Operation) -> None:
        """Give back jobs claimed for a caller that left."""
        assert isinstance(operation.command, Dequeue)
        if operation.command.request_id is not None:
            return  # a repeated request gets these jobs; otherwise the leases run out
        self.give_back_unseen(operation.answer)

    def give_back_unseen(self, jobs: Iterable[JobRecord]) -> None:
        """Give back claims that no caller has received, with the next commit, even if the queue is being closed."""
        for job in jobs:
            self._pending.append(Operation(None, ReturnUnseen(job.spec.id, job.token)))
        self._wake.set()

    def _turn_failed(self, batch: list[Operation], error: CasqueError, *, asked: bool) -> None:
        # Abandoned claims must still be given back: with the next batch, or after a pause. But if the caller of a
        # give-back sees this failure, the job stays with it, and it may go on with it.
        in_doubt = isinstance(error, UnknownOutcomeError)
        self._owed += [
            operation
            for operation in batch
            if type(operation.command) is ReturnUnseen
            or (type(operation.command) is GiveBack and (in_doubt or operation.abandoned))
        ]
        self._rest_until_ms = self._clock.monotonic_ms() + milliseconds(self._settings.poll_max)
        if not asked:
            # No caller is affected: waiting callers keep waiting, and the next poll comes later.
            log.warning("could not look for new jobs or expired leases: %s", error)
            for operation in batch:
                if type(operation) is Waiting and not operation.abandoned:
                    self._parked.add(operation)
            self._pace_polling(found=False)
            return
        for operation in batch:
            operation.fail(error)

    def _maintain(self) -> None:
        """Run one piece of maintenance at a time, alongside the commits."""
        self._upkeep_is_put_off = self._is_maintaining
        if self._upkeep_is_put_off:
            return  # its end wakes the loop
        if (work := self._committer.maintenance()) is not None:
            self._maintenance = asyncio.create_task(work, name="casque maintenance")
            # The next piece has its own time.
            self._maintenance.add_done_callback(lambda _: self._wake.set())

    @property
    def _is_maintaining(self) -> bool:
        return self._maintenance is not None and not self._maintenance.done()

    # --- Waiting callers, polling and timers ---

    def _give_up(self, operation: Waiting) -> None:
        """The wait timed out. If it is in the current batch, that batch still decides."""
        operation.timed_out = True
        if self._parked.discard(operation):
            operation.answer = []
            operation.settle()

    def _answer_all_parked(self) -> None:
        for operation in self._parked.take_all():
            operation.answer = []
            operation.settle()

    def _pace_polling(self, *, found: bool) -> None:
        if not self._parked or self._committer.leads:
            self._poll_at_ms = None  # no caller waits, or no other process could bring what they wait for
            self._poll_delay_ms = milliseconds(self._settings.poll_min)
            return
        self._announcements.listen()
        if found:
            self._poll_delay_ms = milliseconds(self._settings.poll_min)
        delay_ms = max(self._poll_delay_ms * (0.5 + self._rng.random() / 2), self._budget.poll_spacing_ms())
        self._poll_at_ms = self._clock.monotonic_ms() + int(delay_ms) + 1
        self._poll_delay_ms = min(self._poll_delay_ms * 2, milliseconds(self._settings.poll_max))

    def _next_due_in_ms(self) -> float | None:
        """Time until there is work that no caller asked for."""
        now_ms = self._clock.monotonic_ms()
        moments = [
            moment
            for moment in (self._poll_at_ms, self._reaper.next_deadline_ms(), self._announcements.due_ms(now_ms))
            if moment is not None
        ]
        if self._owed:
            moments.append(self._rest_until_ms)
        paced_ms = self._pace.until_ms if self._is_paced else 0
        if paced_ms and self._pending:
            moments.append(paced_ms)
        if (upkeep_ms := self._committer.due_ms()) is not None and not self._is_maintaining:
            moments.append(upkeep_ms)
        state = self._committer.known
        if (tick_ms := self._next_moment_ms()) is not None:
            # A sole writer handles them at once; several writers spread out, one after the other.
            if self._apart_ms is None:
                self._apart_ms = int(APART_MS * self._rng.random())
            apart_ms = 0 if self._committer.sole else self._apart_ms
            moments.append(now_ms + tick_ms + apart_ms - self._clock.wall_ms())
        if self._parked and state is not None and (due := state.next_due_ms()) is not None:
            moments.append(now_ms + due - self._clock.wall_ms())
        return max(min(moments), self._rest_until_ms, paced_ms) - now_ms if moments else None

    def _moment_may_be_handled_elsewhere(self) -> bool:
        """True if a tick or the end of a job is due that another process may have handled already."""
        tick_ms = None if self._committer.sole else self._next_moment_ms()
        return tick_ms is not None and tick_ms <= self._clock.wall_ms()

    def _next_moment_ms(self) -> int | None:
        """When the next schedule ticks or the next job expires, on the wall clock; None if neither will, or if other
        processes handle them."""
        state = self._committer.known
        if state is None or not self._settings.ticks:
            return None
        lapse_ms = state.next_lapse_ms()
        tick_ms = self._ticker.next_ms(state) if state.schedules else None
        if lapse_ms is None or tick_ms is None:
            return tick_ms if lapse_ms is None else lapse_ms
        return min(lapse_ms, tick_ms)

    def _something_is_due(self) -> bool:
        if self._closing:
            return False
        due_in_ms = self._next_due_in_ms()
        return due_in_ms is not None and due_in_ms <= 0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_in_ms = self._next_due_in_ms()
        if due_in_ms is not None and self._reaper.next_deadline_ms() is not None:
            due_in_ms = min(due_in_ms, TICK_MS)
        if due_in_ms is not None and self._next_moment_ms() is not None:
            due_in_ms = min(due_in_ms, LOOK_MS)  # the wall clock may be changed meanwhile
        if due_in_ms is not None and not self._closing:
            self._timer = self._clock.call_later(max(due_in_ms, 0) / 1000 + 0.001, self._wake.set)

    def _take_note(self) -> None:
        """Track leases that began, were renewed or ended."""
        state, news = self._committer.state, self._committer.news()
        if news is None:
            self._reaper.resync(state)
        else:
            self._reaper.observe(news, state)


def _unfinished(error: BaseException) -> BaseException:
    if isinstance(error, asyncio.CancelledError):
        return UnknownOutcomeError("the queue was closed while this call was being written; read back before repeating")
    return error
