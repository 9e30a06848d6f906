"""The outcomes of a batch, made durable: done, failed, or too late."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa

from casque.client.queue import Queue
from casque.clock import Random, new_id
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.service import Outcome

AT_ONCE = 10_000
"""What one call may settle, by the limits of a broker. Several at once still are one commit."""


class Settled(msgspec.Struct, frozen=True):
    done: int
    failed: int
    lost: int


async def settle(queue: Queue[bytes], outcomes: pa.Table, rng: Random) -> Settled:
    """Each outcome once, with the token that its job was claimed with.

    Raises:
        CasqueError: the queue could not be written; some may have been settled.
    """
    columns = [column.to_pylist() for column in outcomes.itercolumns()]
    told = [Outcome(job_id, token, error, result) for job_id, token, error, result in zip(*columns, strict=True)]
    parts = [told[start : start + AT_ONCE] for start in range(0, len(told), AT_ONCE)]
    # With an id, a call that got no answer can be repeated: by the client that follows a failover, for example.
    answers = await asyncio.gather(*(queue.settle(part, request_id=new_id(rng)) for part in parts))
    refused = [_too_late(answer) for several in answers for answer in several]
    failed = sum(outcome.error is not None and not late for outcome, late in zip(told, refused, strict=True))
    lost = sum(refused)
    return Settled(len(told) - failed - lost, failed, lost)


def _too_late(answer: CasqueError | None) -> bool:
    if answer is None or isinstance(answer, LeaseLostError | JobNotFoundError):
        return answer is not None
    raise answer
