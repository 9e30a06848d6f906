"""A machine, and the lives of the process that runs on it: born with a new identity, stopped, killed, born again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from casque.client.opening import Parts
from casque.client.payloads import BytesCodec
from casque.client.queue import Queue
from casque.clock import Random
from casque.engine.committer import Committer, Decide
from casque.errors import CasqueError, UnknownOutcomeError
from casque.state import State
from casque.testing.world.clock import LifeClock, MachineClock
from casque.testing.world.crew import Crew
from casque.testing.world.invariants import Invariant
from casque.testing.world.line import Line
from casque.testing.world.steps import same_state

if TYPE_CHECKING:
    from casque.testing.world.world import World

CURRENT: ContextVar[Life | None] = ContextVar("life", default=None)
"""Whose code is running: every task that it makes dies with it."""


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **kwargs)
    life = CURRENT.get()
    if life is not None:
        life.tasks[task] = None
        task.add_done_callback(life.forget)
    return task


class Node:
    """One machine. Its clocks outlive its process; being cut off and being stopped happen to the machine."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"n{number}"
        self.rng = Random(f"{world.seed}/{self.name}")
        self.clock = MachineClock(world.loop, self.rng, skew_s=world.profile.skew_s, drift=world.profile.drift)
        self.cut_off = False
        self.refused = False
        self.lives = 0
        self.life: Life | None = None

    def start(self) -> None:
        if self.life is None:
            self.lives += 1
            self.life = Life(self, self.lives)
            self.life.begin()

    def crash(self) -> None:
        """Everything stops where it is. What is under way to the store may arrive."""
        life, self.life = self.life, None
        if life is not None:
            self.world.trace.note(life.name, "crash")
            life.kill()
            self.world.loop.call_later(self.rng.uniform(0.05, 4.0), self.start)

    def close(self) -> None:
        if self.life is not None:
            self.life.begin_close()


class Life:
    """One run of the process, with the real queue inside."""

    def __init__(self, node: Node, number: int) -> None:
        world = node.world
        self.world = world
        self.node = node
        self.name = f"{node.name}.{number}"
        self.worker = self.name
        self.writer = ""
        self.rng = Random(f"{world.seed}/{self.name}/work")
        self.dead = False
        self.closing = False
        self.in_doubt: set[int] = set()
        """The numbers of its batches of which it never knew whether they landed."""
        self._leaving: list[tuple[asyncio.Task[Any], int]] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.clock = LifeClock(node.clock, self, world.loop)
        self._stopped = False
        self._held: list[Callable[[], object]] = []
        line = Line(world.bucket, self, Random(f"{world.seed}/{self.name}/line"))
        parts = _WatchedParts(self, line)
        self.queue = Queue(parts, BytesCodec(), worker=self.worker)
        self._opened = False
        self._crew = Crew(self)
        self._context = copy_context()
        self._context.run(CURRENT.set, self)

    # --- Born, closed, killed ---

    def begin(self) -> None:
        self.world.trace.note(self.name, "start")
        self._context.run(self.world.loop.create_task, self._live())

    async def _live(self) -> None:
        try:
            await self.queue.__aenter__()
        except CasqueError as error:
            self.world.trace.note(self.name, f"could not open: {error}")
            self.world.loop.call_soon(self.node.crash)
            return
        self._opened = True
        self._crew.begin()

    def begin_close(self) -> None:
        if self._opened and not self.closing:
            self.closing = True
            self.world.trace.note(self.name, "close")
            self._context.run(self.world.loop.create_task, self._close())

    async def _close(self) -> None:
        if self.rng.random() < 0.5:
            self._crew.dismiss()
        await self.queue.__aexit__(None, None, None)
        self.world.trace.note(self.name, "closed")
        self.world.loop.call_soon(self.node.crash)

    def kill(self) -> None:
        """No code of this life reaches the store, a timer or a caller's answer any more; what is left unwinds."""
        self.dead = True
        self._held.clear()
        for task in list(self.tasks):
            task.cancel()

    def stop_if_dead(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    def forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    # --- Whatever reaches the process comes through here ---

    def deliver(self, callback: Callable[[], object]) -> None:
        """Replies and timers. A stopped process gets them when it goes on, a dead one never."""
        if self.dead:
            return
        if self._stopped:
            self._held.append(callback)
        else:
            callback()

    def leave_when_written(self, call: asyncio.Task[Any], *, rounds: int) -> None:
        """This call is cancelled so many rounds of the loop after the reply to the next write."""
        self._leaving.append((call, rounds))

    def written(self) -> None:
        leaving, self._leaving = self._leaving, []
        for call, rounds in leaving:
            self._leave_in(call, rounds)

    def _leave_in(self, call: asyncio.Task[Any], rounds: int) -> None:
        if rounds:
            self.world.loop.call_soon(self._leave_in, call, rounds - 1)
        else:
            call.cancel()

    def stop(self) -> None:
        """As by SIGSTOP."""
        self._stopped = True
        self.world.trace.note(self.name, "stop")

    def go_on(self) -> None:
        if self._stopped:
            self._stopped = False
            self.world.trace.note(self.name, "go on")
            held, self._held = self._held, []
            for callback in held:
                self.world.loop.call_soon(self.deliver, callback)

    def committed(self, state: State) -> None:
        """The engine believes that this is the queue."""
        history = self.world.history
        stored = history.states.get(state.position)
        if stored is not None and not self.dead:
            history.demand(
                same_state(state, stored),
                Invariant.SAME_STATE,
                lambda: f"{self.name} holds another state of position {state.position} than the store",
            )


class _WatchedParts(Parts):
    """The real parts, with an eye on what a commit leaves in memory."""

    def __init__(self, life: Life, line: Line) -> None:
        rng = Random(f"{life.world.seed}/{life.name}/queue")
        super().__init__(line, life.world.profile.settings, clock=life.clock, rng=rng, **life.world.layout.parts)
        self._life = life

    def committer(self) -> Committer:
        committer, life = super().committer(), self._life
        commit = committer.commit

        async def watched(decide: Decide) -> None:
            try:
                await commit(decide)
            except UnknownOutcomeError:
                life.in_doubt.add(committer._batches)  # noqa: SLF001  the one that it tried last
                raise
            with life.world.watching():
                life.committed(committer.state)

        committer.commit = watched  # type: ignore[method-assign]
        life.writer = committer.writer
        return committer
