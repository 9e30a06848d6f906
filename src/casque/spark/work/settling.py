"""The outcomes of a batch, made durable: done, failed, or too late."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa

from casque.client.queue import Queue
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError


class Settled(msgspec.Struct, frozen=True):
    done: int
    failed: int
    lost: int


async def settle(queue: Queue[bytes], outcomes: pa.Table) -> Settled:
    """Each outcome once, with the token that its job was claimed with.

    Raises:
        CasqueError: the queue could not be written; some may have been settled.
    """
    done = failed = lost = 0
    columns = [column.to_pylist() for column in outcomes.itercolumns()]
    calls = [
        queue.ack(job_id, token, result=result) if error is None else queue.nack(job_id, token, error=error)
        for job_id, token, error, result in zip(*columns, strict=True)
    ]
    for error, answer in zip(columns[2], await asyncio.gather(*calls, return_exceptions=True), strict=True):
        if isinstance(answer, LeaseLostError | JobNotFoundError):
            lost += 1
        elif isinstance(answer, CasqueError | BaseException):
            raise answer
        elif error is None:
            done += 1
        else:
            failed += 1
    return Settled(done, failed, lost)
