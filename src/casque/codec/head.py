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
    place: str | None = None
    """Where it leads; a copy of the queue is another place. None if the store cannot tell, and in older heads."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes may raise. JSON nested a thousand deep ends in a RecursionError."""


class _Ours(msgspec.Struct, frozen=True):
    """What casque writes into every `queue.json`, in every layout; only a head has all three."""

    format: int
    layout: str
    queue_id: str


class _Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What jqueue writes: these two and nothing else."""

    version: int
    jobs: list[msgspec.Raw]


_ours_decoder = msgspec.json.Decoder(_Ours)
_foreign_decoder = msgspec.json.Decoder(_Foreign)


def read_layout(key: str, body: bytes, place: str | None = None) -> Head:
    """What kind of queue this is, before anything else is believed. `place` names the object for people.

    Recognised is what casque writes (`format`, `layout` and `queue_id`) and what jqueue writes (`version` and `jobs`,
    alone). Whatever else lies there belongs to another program.

    Raises:
        CorruptQueueError: it is none that this release knows.
    """
    try:
        ours = _ours_decoder.decode(body)
    except UNREADABLE as error:
        if _is_foreign(body):
            return Head()
        raise not_a_queue(key, error, place) from error
    if ours.format < 1:
        raise not_a_queue(key, f"its format is {ours.format}", place)
    head = Head(ours.format, ours.layout, ours.queue_id)
    check_format(key, head)
    return head


def _is_foreign(body: bytes) -> bool:
    try:
        _foreign_decoder.decode(body)
    except UNREADABLE:
        return False
    return True


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


def not_a_queue(key: str, why: Exception | str, place: str | None = None) -> CorruptQueueError:
    return CorruptQueueError(
        key,
        f"{'this' if place is None else place} is not a queue that casque or jqueue wrote ({why}). A queue of casque's "
        'has "format", "layout" and "queue_id", one of jqueue\'s "version" and "jobs" alone. Nothing was changed: if '
        "it was a queue, restore the object from a backup or an older version; if it belongs to another program, keep "
        "the queue elsewhere",
    )
