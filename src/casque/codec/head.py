"""What every `queue.json` says first, whatever its layout."""

from __future__ import annotations

import msgspec

from casque.errors import CorruptQueueError, QueueReplacedError, RingError

FORMAT = 1
KEY = "queue.json"
RING = "ring"
"""The layout of a root that has no jobs of its own, only shards."""


class Head(msgspec.Struct, frozen=True):
    """What every `queue.json` says first, whatever its layout."""

    format: int = 0
    layout: str = "document"
    queue_id: str | None = None


class Owner(msgspec.Struct, frozen=True):
    """Who has the queue for itself. The nonce is made for each claim; the address is where a leader can be reached."""

    id: str
    nonce: str
    address: str | None = None


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes may raise. JSON nested a thousand deep ends in a RecursionError."""

_decoder = msgspec.json.Decoder(Head)


def read_layout(key: str, body: bytes) -> Head:
    """What kind of queue this is, before anything else is believed.

    Raises:
        CorruptQueueError: it is none that this release knows.
    """
    try:
        head = _decoder.decode(body)
    except UNREADABLE as error:
        raise not_a_queue(key, error) from error
    check_format(key, head)
    return head


def check_format(key: str, head: Head) -> None:
    if head.format > FORMAT:
        raise CorruptQueueError(
            key, f"written in format {head.format} by a newer casque; this one reads up to {FORMAT}. Upgrade casque"
        )


def check_single(head: Head) -> Head:
    """
    Raises:
        RingError: it is a ring of shards, and has no jobs and no history of its own.
    """
    if head.layout == RING:
        raise RingError
    return head


def check_layout(head: Head, layout: str) -> None:
    """Asked by those who have seen this queue in `layout` before.

    Raises:
        QueueReplacedError: it was converted since.
        RingError: it is a ring of shards.
    """
    if check_single(head).layout != layout:
        raise QueueReplacedError(f"a queue in the layout {head.layout!r}")


def check_same_queue(head: Head, queue_id: str | None) -> None:
    """`queue_id` is that of the queue that was opened; None if it has none, or was not there yet.

    Raises:
        QueueReplacedError: it was converted since, and maybe back, or another one put there.
    """
    if queue_id is not None and head.queue_id not in (None, queue_id):
        raise QueueReplacedError(f"the queue {head.queue_id} and not {queue_id}")


def gone() -> CorruptQueueError:
    return CorruptQueueError(
        KEY, "was there before and is gone: somebody deleted it. Restore it, or reopen the queue anew"
    )


def not_a_queue(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key,
        f"this is not a queue that casque or jqueue wrote ({error}). Nothing was changed: restore the object from a "
        "backup or an older version, or open the queue under another prefix",
    )
