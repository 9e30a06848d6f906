"""How long a job waited for its start, as hooks and metrics of a worker show it."""

from __future__ import annotations

from datetime import timedelta

from casque import JobEvent, Queue
from casque.clock import new_nonce, system_random
from casque.service import Outcome
from casque.testing import ManualClock
from casque.worker import Handler
from casque.worker.claims import Claim
from casque.worker.hooks import Hooks, Moment

HANDLER = Handler("send", lambda payload, context: None, is_async=False)


async def test_a_wait_is_from_due_to_start_though_clocks_of_queue_and_worker_differ() -> None:
    clock = ManualClock()
    seen: list[JobEvent] = []

    async def hook(event: JobEvent) -> None:
        seen.append(event)

    async with Queue.open("memory://" + new_nonce(system_random()), clock=clock) as queue:
        waiting = await queue.enqueue("send", b"", delay=60)
        await clock.advance(60 + 90)
        [job] = await queue.dequeue("send")
        hooks = Hooks({Moment.CLAIMED: [hook], Moment.COMPLETED: [hook]})
        claim = Claim(job, HANDLER, now_ms=7)  # a worker that has just booted
        hooks.claimed(claim)
        claim.started_ms, claim.beaten_ms, claim.how = 507, 400, "done"
        hooks.settled(claim, Outcome(job.id, job.token), 1.5)
        await hooks.close()

    claimed, completed = seen
    assert claimed.due_at == completed.due_at == waiting.created_at + timedelta(seconds=60)
    assert (claimed.waited_s, completed.waited_s, completed.elapsed_s) == (90.0, 90.5, 1.5)
