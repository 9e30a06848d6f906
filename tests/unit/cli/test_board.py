"""The board behind `casque top`, held against the queue that it is a picture of."""

from __future__ import annotations

import pytest
from rich.console import Console

from casque import Outcome, OutcomeKind, Queue
from casque.cli.queue.info import depths
from casque.cli.top.board import OTHERS, WINDOW_MS, Board, Contents, Picture, Rates
from casque.cli.top.view import draw
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Random
from casque.errors import CasqueError
from casque.state import State
from casque.testing import ManualClock
from casque.types import JobState

NAMES = ("send", "resize", "report")


async def busy(q: Queue[bytes], rng: Random, clock: ManualClock, steps: int) -> None:
    """Everything that can happen to a job, in any order."""
    held = []
    for _ in range(steps):
        await clock.advance(rng.choice((0, 0, 0.5, 3)))
        name = rng.choice(NAMES)
        match rng.randrange(12):
            case 0 | 1:
                wait, attempts, crashes = rng.choice((None, 2)), rng.choice((1, 2, 9)), rng.choice((None, 1, 2))
                await q.enqueue(name, b"", delay=wait, max_attempts=attempts, max_crashes=crashes)
            case 2 | 3:
                held += await q.dequeue(name, batch_size=2)
            case 4 if held:
                await held.pop(rng.randrange(len(held))).ack()
            case 5 if held:
                await held.pop(rng.randrange(len(held))).nack(delay=rng.choice((0, 2)), error="no")
            case 6 if held:
                await q.give_back([held.pop(rng.randrange(len(held)))])
            case 7 if held:
                await q.heartbeats(held)
            case 8 | 9 | 10 if held:
                job = held.pop(rng.randrange(len(held)))
                told = (
                    Outcome(job.id, job.token, error="killed", how=OutcomeKind.CRASHED),
                    Outcome(job.id, job.token, delay_ms=rng.choice((0, 2000)), how=OutcomeKind.SNOOZED),
                    Outcome(job.id, job.token, how=OutcomeKind.CANCELLED),
                )
                assert await q.settle([rng.choice(told)]) == [None]
            case _:
                for job in await q.jobs(limit=1):
                    try:
                        await (q.retry(job.id) if job.record.state is JobState.DEAD else q.cancel(job.id))
                        held = [one for one in held if one.id != job.id]
                    except CasqueError:
                        pass
                if rng.random() < 0.2:
                    await q.purge()


def read_of(state: State, clock: ManualClock) -> Contents:
    return Contents(state.position, state.totals(clock.wall_ms()), list(state.jobs.values()))


async def followed(board: Board, url: str, clock: ManualClock) -> Picture:
    async for event in Queue.open(as_store(url)).events(from_position=board.position, follow=False):
        board.take(event, now_ms=clock.wall_ms())
    return board.picture(url, now_ms=clock.wall_ms(), layout="log", leader=None)


@pytest.mark.parametrize("seed", range(6))
async def test_a_board_that_follows_is_what_the_queue_is(seed: int) -> None:
    url, clock, rng = f"memory://board-{seed}", ManualClock(), Random(seed)
    async with Queue.open(url, clock=clock, worker="w1") as q:
        await busy(q, rng, clock, 60)
        parts = Parts(as_store(url), DEFAULTS, clock=clock)
        state = await parts.read()
        board = Board(read_of(state, clock), now_ms=clock.wall_ms())
        for _ in range(4):
            await busy(q, rng, clock, 40)
            picture = await followed(board, url, clock)

            state = await parts.read()
            assert picture.totals == state.totals(clock.wall_ms())
            assert picture.position == state.position
            found = {one.entrypoint: one for one in depths(state.jobs.values(), clock.wall_ms())}
            shown = {
                one.entrypoint: one for one in picture.entrypoints if one.ready + one.delayed + one.running + one.dead
            }
            assert shown.keys() == found.keys()
            for name, one in found.items():
                for field in ("ready", "delayed", "running", "dead", "oldest_due_at"):
                    assert getattr(shown[name], field) == getattr(one, field), (name, field)
            running = {job.spec.id: job for job in state.leases()}
            assert {job.id for job in picture.running} == running.keys()
            assert all(job.attempt == running[job.id].attempts for job in picture.running)


async def test_a_queue_that_was_read_later_than_its_events_begin_is_told_right_in_the_end() -> None:
    url, clock, rng = "memory://board-ahead", ManualClock(), Random(5)
    async with Queue.open(url, clock=clock, worker="w1") as q:
        await busy(q, rng, clock, 60)
        before = await q.stats()
        await busy(q, rng, clock, 60)
        later = [job.record for job in await q.jobs()]  # as a broker is asked, in portions, while it goes on
        board = Board(Contents(before.position, before.totals, later), now_ms=clock.wall_ms())
        picture = await followed(board, url, clock)

        assert picture.totals == (await q.stats()).totals


async def test_jobs_that_were_not_looked_at_are_counted() -> None:
    url, clock = "memory://board-others", ManualClock()
    async with Queue.open(url, clock=clock, worker="w1") as q:
        await q.enqueue_many([("send", b"")] * 10)
        stats, seen = await q.stats(), [job.record for job in await q.jobs(limit=4)]
        board = Board(Contents(stats.position, stats.totals, seen), now_ms=clock.wall_ms())
        for job in (await q.dequeue("send", batch_size=6))[:5]:
            await job.ack()
        picture = await followed(board, url, clock)

    assert picture.totals == (await _totals(url, clock))
    assert [(one.entrypoint, one.ready, one.running) for one in picture.entrypoints] == [(OTHERS, 4, 1), ("send", 0, 0)]


async def _totals(url: str, clock: ManualClock) -> object:
    return (await Parts(as_store(url), DEFAULTS, clock=clock).read()).totals(clock.wall_ms())


async def test_rates_are_those_of_the_last_seconds() -> None:
    url, clock = "memory://board-rates", ManualClock()
    async with Queue.open(url, clock=clock, worker="w1") as q:
        stats = await q.stats()
        board = Board(Contents(stats.position, stats.totals, []), now_ms=clock.wall_ms())
        await q.enqueue_many([("send", b"")] * 40)
        good, bad = await q.dequeue("send", batch_size=2)
        await good.ack()
        await bad.nack(error="no")
        await clock.advance(4)
        picture = await followed(board, url, clock)
        assert picture.rates == Rates(10.0, 0.25, 0.25)
        assert picture.entrypoints[0].rates == Rates(10.0, 0.25, 0.25)
        assert [(one.name, one.done, one.failed) for one in picture.workers] == [("w1", 1, 1)]
        assert [commit.events for commit in picture.commits][-1] == {"added": 40}

        await clock.advance(WINDOW_MS / 1000 + 1)
        assert (await followed(board, url, clock)).rates == Rates(0.0, 0.0, 0.0)


async def test_what_is_paused_or_draining_is_shown() -> None:
    url, clock = "memory://board-gates", ManualClock()
    async with Queue.open(url, clock=clock) as q:
        await q.pause()
        stats = await q.stats()
        board = Board(Contents(stats.position, stats.totals, [], [], stats.gates), now_ms=clock.wall_ms())
        await q.drain("send")
        picture = await followed(board, url, clock)
        assert picture.gates == (await q.stats()).gates
        console = Console(width=80, color_system=None)
        with console.capture() as shown:
            console.print(draw(picture, width=80))
        assert "the queue is paused; send is draining" in shown.get()
        await q.resume()
        await q.resume("send")
        assert not (await followed(board, url, clock)).gates


async def test_schedules_are_shown_with_their_next_tick() -> None:
    url, clock = "memory://board-cron", ManualClock()
    async with Queue.open(url, clock=clock, worker="w1") as q:
        first = await q.set_schedule("hourly", "@hourly", ("send", b""))
        stats = await q.stats()
        board = Board(Contents(stats.position, stats.totals, [], await q.schedules()), now_ms=clock.wall_ms())
        await q.set_schedule("often", "* * * * *", ("send", b""))
        picture = await followed(board, url, clock)
        assert [due.name for due in picture.schedules] == ["often", "hourly"]
        assert picture.schedules[1].next_at == first.next_at

        await clock.advance(61)
        await q.pause_schedule("hourly")
        picture = await followed(board, url, clock)
        assert [(due.name, due.paused) for due in picture.schedules] == [("often", False), ("hourly", True)]
        assert picture.schedules[0].next_at == next(one.next_at for one in await q.schedules() if one.name == "often")
        await q.drop_schedule("often")
        assert [due.name for due in (await followed(board, url, clock)).schedules] == ["hourly"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 40), (40, 12), (200, 15)])
async def test_a_picture_fits_into_any_terminal(width: int, height: int) -> None:
    url, clock = f"memory://board-{width}x{height}", ManualClock()
    async with Queue.open(url, clock=clock, worker="w1") as q:
        stats = await q.stats()
        board = Board(Contents(stats.position, stats.totals, []), now_ms=clock.wall_ms())
        for n in range(60):
            await q.enqueue(f"entrypoint [number] {n}", b"")
        await q.dequeue(batch_size=30)
        picture = await followed(board, url, clock)
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(draw(picture, [1, 5, 3, 0], width=width, height=height))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    if height >= 24:
        assert len(lines) <= height
    assert "ready 30" in shown.get()
