"""Functions that a real worker runs: results come back, functions enqueue others, bad payloads end where they are."""

from __future__ import annotations

from pathlib import Path

from casque import App, JobContext, JobState, Queue
from casque.worker import Worker


def shop(place: str) -> App:
    """An app whose functions enqueue one another, from the loop and from a thread."""
    app = App(place, max_attempts=3)

    @app.job()
    async def order(number: int) -> str:
        await pack.enqueue(number)
        return f"order {number}"

    @app.job()
    def pack(number: int) -> list[int]:
        thank.enqueue_sync(f"customer {number}")
        return [number]

    @app.job(backoff=[0])
    def thank(context: JobContext, name: str) -> str:
        if context.attempt == 1:
            raise ConnectionError("not now")
        return f"thank you, {name}, at attempt {context.attempt}"

    return app


async def test_a_worker_runs_functions_that_enqueue_others(tmp_path: Path) -> None:
    app = shop(tmp_path.as_uri())
    async with Queue.open(tmp_path.as_uri()) as queue:
        await queue.enqueue("order", b'{"number":7}')
        wrong = await queue.enqueue("order", b'{"nummer":7}')

    summary = await Worker(app, burst=True).run()

    assert summary.done == 3
    async with Queue.open(tmp_path.as_uri()) as queue:
        [dead] = await queue.jobs()
        assert (dead.id, dead.state, dead.attempts) == (wrong.id, JobState.DEAD, 1)
        assert dead.last_error is not None
        assert "there is no argument 'nummer'" in dead.last_error or "'number' is missing" in dead.last_error
    results = {
        job.entrypoint: job.result async for job in Queue.open(tmp_path.as_uri()).archive(states=[JobState.DONE])
    }
    assert results == {
        "order": b'"order 7"',
        "pack": b"[7]",
        "thank": b'"thank you, customer 7, at attempt 2"',
    }
