"""The driver's part of a write: one commit that names the objects staged by the tasks.

The commit goes through the broker that leads the queue, or else is made by this process. Leadership may change at any
moment, and an answer may get lost. Retrying is safe: the queue remembers the last batch of every source.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec

from casque.client.queue import Queue
from casque.client.sync import SyncQueue
from casque.clock import new_nonce, system_random
from casque.errors import (
    CasqueError,
    CheckpointError,
    CorruptQueueError,
    NoLeaderError,
    QueueClosedError,
    QueueLedError,
    QueueReplacedError,
    StorageError,
    UnknownOutcomeError,
)
from casque.spark.via import Via, is_led
from casque.spark.write_options import WriteOptions
from casque.storage.port import Lost, Store, Stored, Unknown
from casque.storage.url import open_store
from casque.telemetry import logger
from casque.types import Admission, StagedPart

log = logger("spark")

TRIES_MAX = 5
HELD_MAX = 4
"""Streams of one session that keep their queue open."""
WRITERS = "writers/"
ASK_ELSEWHERE = (QueueLedError, NoLeaderError, QueueReplacedError, QueueClosedError, UnknownOutcomeError)
"""This queue or broker cannot do it, or did not say whether it has: find the current leader and ask there."""


def admit(
    options: WriteOptions, *, source: str, batch: int, parts: Sequence[StagedPart], stay_open: bool = False
) -> Admission:
    """Make the commit. A stream keeps its queue open: reading a large one anew for each batch would take longer than
    everything else.

    Raises:
        InvalidInputError: the queue already has a job of the batch. Nothing was enqueued.
        UnknownOutcomeError: it is unknown whether the commit landed. Sending the same batch again is safe.
    """
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            done = _queue(options).admit(source, batch, parts, skip_known=options.skips_known)
        except ASK_ELSEWHERE as error:
            _let_go(options)
            if not tries_left or (options.via is not Via.AUTO and not isinstance(error, UnknownOutcomeError)):
                raise
            log.info("asking again: %s", error)
        except BaseException:
            _let_go(options)
            raise
        else:
            if not stay_open:
                _let_go(options)
            log.info("batch %s of %s: %s jobs at position %s", batch, source, done.jobs, done.position)
            return done
    raise AssertionError("the last try raises")


# --- The queue that stays open between the batches of a stream ---


class _Holding(msgspec.Struct):
    options: WriteOptions
    queue: SyncQueue[bytes]


_held: list[_Holding] = []
"""Spark commits all streams in one process, and ends it after a minute without work."""


def _queue(options: WriteOptions) -> SyncQueue[bytes]:
    for holding in _held:
        if holding.options == options:
            return holding.queue
    if len(_held) >= HELD_MAX:
        _let_go(_held[0].options)
    queue = _opened(options).__enter__()
    _held.append(_Holding(options, queue))
    return queue


def _let_go(options: WriteOptions) -> None:
    for holding in [holding for holding in _held if holding.options == options]:
        _held.remove(holding)
        try:
            holding.queue.__exit__(None, None, None)
        except CasqueError as error:
            # The commit has its answer. After an error here Spark would take a write for failed that has landed.
            log.warning("could not close the queue cleanly; the next process to open it recovers: %s", error)


def _opened(options: WriteOptions) -> SyncQueue[bytes]:
    by_broker = options.via is Via.BROKER or options.broker is not None
    if not by_broker and options.via is Via.AUTO:
        by_broker = asyncio.run(is_led(options.url, options.store))
    if options.broker is not None:
        return SyncQueue(Queue.open(options.broker, token=options.token, tls=options.tls))
    if by_broker:
        return SyncQueue(
            Queue.open(options.url, options=options.store, via="broker", token=options.token, tls=options.tls)
        )
    return SyncQueue(Queue.open(options.url, options=options.store))


# --- A writer's name belongs to one checkpoint ---


class _Binding(msgspec.Struct, frozen=True):
    writer: str
    query: str
    nonce: str


def bind_writer(options: WriteOptions, writer: str, query: str) -> None:
    """Give a writer's name to one query. Batches are numbered by the checkpoint. Under a new checkpoint they begin at 0
    again, the queue would take them for batches that it has, and their jobs would silently be lost. So the first query
    to use a name keeps it.

    Raises:
        CheckpointError: another query has this name.
    """
    asyncio.run(_bind(options, writer, query))


async def _bind(options: WriteOptions, writer: str, query: str) -> None:
    store = open_store(options.url, options=options.store)
    try:
        bound = await _bound(store, _Binding(writer, query, new_nonce(system_random())))
    finally:
        await store.close()
    if bound.query != query:
        raise CheckpointError(
            f"the writerId {writer!r} belongs to the query {bound.query}, and this is {query}: its checkpoint was "
            "deleted, or is another one. Nothing was enqueued. To go on with the new one choose another writerId; "
            "rows that it reads again become jobs again, unless they have the ids of jobs that are still in the queue"
        )


async def _bound(store: Store, mine: _Binding) -> _Binding:
    key = f"{WRITERS}{hashlib.sha256(mine.writer.encode()).hexdigest()[:32]}"
    for _ in range(TRIES_MAX):
        read = await store.get(key)
        if isinstance(read, Stored):
            try:
                return msgspec.json.decode(read.body, type=_Binding)
            except msgspec.DecodeError as error:
                raise CorruptQueueError(key, f"this is no writer's name ({error}). Delete it to begin anew") from error
        outcome = await store.create(key, msgspec.json.encode(mine))
        if not isinstance(outcome, Lost | Unknown):
            return mine
    raise StorageError(f"could not find out whose {key} is; nothing was enqueued")
