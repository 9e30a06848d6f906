"""Makes the outcomes of a batch durable: done, failed, snoozed, cancelled, or too late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from casque.client.job import Job
from casque.client.queue import Queue
from casque.clock import Random, new_id
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.service import FAILURES, Outcome

AT_ONCE = 10_000
"""Most outcomes per call, a limit of brokers. Concurrent calls still are one commit."""


class Settled(msgspec.Struct, frozen=True):
    done: int = 0
    failed: int = 0
    snoozed: int = 0
    cancelled: int = 0
    declined: int = 0
    lost: int = 0


async def settle(queue: Queue[bytes], done: Sequence[Job[bytes]], outcomes: Sequence[Outcome], rng: Random) -> Settled:
    """Settle each outcome once, with the token of its claim.

    Raises:
        CasqueError: the queue could not be written; some may have been settled.
    """
    everything: list[Job[bytes] | Outcome] = [*done, *outcomes]
    parts = [everything[start : start + AT_ONCE] for start in range(0, len(everything), AT_ONCE)]
    # With an id, a call without an answer can be repeated, for example by a client that follows a failover.
    answers = await asyncio.gather(*(queue.settle(part, request_id=new_id(rng)) for part in parts))
    late = [answer is not None and _too_late(answer) for several in answers for answer in several]
    late_done = sum(late[: len(done)])
    counts = Counter(done=len(done) - late_done, lost=late_done)
    counts.update("lost" if refused else _how(one) for one, refused in zip(outcomes, late[len(done) :], strict=True))
    return Settled(**counts)


def _how(outcome: Outcome) -> str:
    return "failed" if outcome.kind in FAILURES else outcome.kind.value


def _too_late(answer: CasqueError) -> bool:
    if isinstance(answer, LeaseLostError | JobNotFoundError):
        return True
    raise answer
