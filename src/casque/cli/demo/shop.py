"""The demo itself: starts the processes, enqueues, watches, kills a worker, and reports."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from casque.cli.demo.app import app, call, count_stock, write_report
from casque.cli.demo.crew import LEASE_S, Crew, CrewError, Member
from casque.cli.demo.summary import report_summary
from casque.cli.formats import now
from casque.cli.top.board import Picture, RunningJob
from casque.cli.top.source import Watch, open_source
from casque.cli.top.view import draw
from casque.client.config import QueueConfig
from casque.client.queue import Queue
from casque.clock import SystemClock

LOOK_S = 0.25
LINE_S = 2.0
"""How often a line of progress is printed without a terminal."""
PORTIONS = 10
PAUSE_S = 0.3
"""Between two portions, so that there is something to see."""
LONGEST_S = 120.0
KILL_AFTER = 0.25
"""A worker is killed when this share of all jobs is done."""
VIEW_LINES = 28


class Demo:
    """One run."""

    def __init__(self, data: Path, jobs: int, workers: int, console: Console) -> None:
        self._data = data
        self._jobs = jobs
        self._workers = workers
        self._console = console
        self._clock = SystemClock()
        self._crew = Crew(self._clock)
        self._began_ms = self._clock.monotonic_ms()
        self._depths: deque[int] = deque(maxlen=300)
        self._victim: Member | None = None
        self._held: tuple[RunningJob, ...] = ()
        """The jobs of the victim when it was killed, as the queue knew them."""
        self._last: Picture | None = None

    async def run(self) -> bool:
        try:
            self._data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CrewError(
                f"no queue can be kept in {self._data}: {error.strerror or error}; name a directory with --data"
            ) from error
        begun = now()
        try:
            return await self._shop(begun)
        finally:
            await self._crew.end()

    async def _shop(self, begun: datetime) -> bool:
        broker, address = await self._crew.start_broker(self._data.as_uri())
        self._say(f"a broker leads the queue in {self._data}, at {address}")
        async with Watch(await open_source(QueueConfig(f"grpc://{address}")), f"grpc://{address}") as watch:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                team = await self._hire(address)
                async with Queue.open(f"grpc://{address}", worker="demo") as queue:
                    await self._schedule(queue)
                    burst = asyncio.create_task(self._enqueue(queue))
                    try:
                        await self._watch(watch, live, team, burst, queue)
                    finally:
                        burst.cancel()
                        await asyncio.gather(burst, return_exceptions=True)
        done = self._clock.monotonic_ms()
        await self._crew.stop(*team)
        await self._crew.stop(broker)
        self._say("workers and broker have stopped")
        names = {member.name: member.title for member in team}
        return await report_summary(
            self._console,
            self._data,
            since=begun,
            names=names,
            seconds=(done - self._began_ms) / 1000,
            victim=None if self._victim is None else self._victim.title,
            held=self._held,
            lease_s=LEASE_S,
        )

    async def _hire(self, address: str) -> list[Member]:
        starting = (self._crew.start_worker(number, address) for number in range(1, self._workers + 1))
        team = await asyncio.gather(*starting)
        self._say(f"{len(team)} workers have started")
        return list(team)

    async def _schedule(self, queue: Queue[bytes]) -> None:
        """Wait until a worker has set the schedule, and trigger it once: a minute is long."""
        name = count_stock.entrypoint
        while not (found := [one for one in await queue.schedules() if one.name == name]):
            self._refuse_if_late()
            await self._clock.sleep(LOOK_S)
        await queue.trigger_schedule(name)
        self._say(f"{name} is due every minute, next at {found[0].next_at:%H:%M} UTC; once it is triggered by hand")

    async def _enqueue(self, queue: Queue[bytes]) -> None:
        with app.through(queue):
            for portion in range(PORTIONS):
                numbers = range(portion * self._jobs // PORTIONS, (portion + 1) * self._jobs // PORTIONS)
                if numbers:
                    await app.enqueue_many([call(number) for number in numbers])
                    await self._clock.sleep(PAUSE_S)
        self._say(f"{self._jobs:,} jobs of {len(app.handlers)} kinds are enqueued, in portions")

    # --- Watching ---

    async def _watch(
        self, watch: Watch, live: Live, team: list[Member], burst: asyncio.Task[None], queue: Queue[bytes]
    ) -> None:
        first: Picture | None = None
        printed_ms = self._clock.monotonic_ms()
        while True:
            picture = await watch.look()
            first = first or picture
            self._depths.append(picture.totals.ready)
            done = picture.totals.done - first.totals.done
            if burst.done():
                burst.result()
            if burst.done() and not _waiting(picture):
                if self._victim is not None:
                    return
                with app.through(queue):  # there were too few jobs to catch a worker with one
                    await write_report.enqueue(day=0)
            if self._victim is None and done >= KILL_AFTER * self._jobs:
                self._kill(team, picture)
            elif self._victim is not None and not self._held:
                self._held = tuple(job for job in picture.running if job.worker == self._victim.name)
            self._refuse_if_stuck(team)
            if self._console.is_terminal:
                self._draw(live, picture)
            elif self._clock.monotonic_ms() - printed_ms >= LINE_S * 1000:
                printed_ms = self._clock.monotonic_ms()
                self._say(_line(picture))
            await self._clock.sleep(LOOK_S)

    def _kill(self, team: list[Member], picture: Picture) -> None:
        """Kill the worker that has run a job longest."""
        names = {member.name: member for member in team}
        member = next((names[job.worker] for job in picture.running if job.worker in names), None)
        if member is None:
            return
        self._victim = member
        member.process.kill()
        self._say(f"{member.title} is killed (SIGKILL) while it works; its leases run out in {LEASE_S:g} s")
        if not self._console.is_terminal:
            self._console.print(draw(picture, width=self._console.width, height=VIEW_LINES))

    def _draw(self, live: Live, picture: Picture) -> None:
        height = max(self._console.height - 8, 16)  # leave room for the lines above
        live.update(draw(picture, list(self._depths), width=self._console.width, height=height), refresh=True)

    def _refuse_if_late(self) -> None:
        if self._clock.monotonic_ms() - self._began_ms > LONGEST_S * 1000:
            raise CrewError(f"not everything was worked off within {LONGEST_S:.0f} s")

    def _refuse_if_stuck(self, team: list[Member]) -> None:
        self._refuse_if_late()
        if not any(member.runs for member in team):
            raise CrewError("no worker is left")

    def _say(self, what: str) -> None:
        seconds = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._console.print(Text(f"{seconds:5.1f} s  {what}"), soft_wrap=True)


def _waiting(picture: Picture) -> int:
    """Unfinished jobs of the shop; other jobs in the queue do not count."""
    return sum(one.ready + one.delayed + one.running for one in picture.entrypoints if one.entrypoint in app.handlers)


def _line(picture: Picture) -> str:
    totals = picture.totals
    return (
        f"{totals.ready:,} ready, {totals.running:,} running, {totals.delayed:,} to be tried again, "
        f"{totals.done:,} done, {totals.dead:,} dead"
    )
