"""The fields that every `queue.json` starts with, in every layout."""

from __future__ import annotations

import msgspec

from casque.errors import CorruptQueueError, QueueReplacedError, RingError

FORMAT = 1
KEY = "queue.json"
RING = "ring"
"""The layout of a root that has no jobs of its own, only shards."""


class Head(msgspec.Struct, frozen=True):
    """The fields that every `queue.json` starts with, in every layout."""

    format: int = 0
    layout: str = "document"
    queue_id: str | None = None


class Owner(msgspec.Struct, frozen=True):
    """The exclusive owner of a queue. Each claim has a new nonce; `address` is where clients reach a leader."""

    id: str
    nonce: str
    address: str | None = None
    place: str | None = None
    """The place where it leads; a copy of the queue is another place. None if the store has no such mark, and in older
    heads."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding damaged bytes. JSON nested a thousand deep raises RecursionError."""


class _Ours(msgspec.Struct, frozen=True):
    """The fields that casque writes into every `queue.json`, in every layout; only a head has all three."""

    format: int
    layout: str
    queue_id: str


class _Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields that jqueue writes: these two and nothing else."""

    version: int
    jobs: list[msgspec.Raw]


_ours_decoder = msgspec.json.Decoder(_Ours)
_foreign_decoder = msgspec.json.Decoder(_Foreign)


def read_layout(key: str, body: bytes, place: str | None = None) -> Head:
    """Find out the kind of queue before anything else is read. `place` names the object in errors.

    Accepts heads of casque (`format`, `layout` and `queue_id`) and of jqueue (`version` and `jobs`, alone). Anything
    else belongs to another program.

    Raises:
        CorruptQueueError: this release knows no such head.
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
        RingError: the queue is a ring of shards, which has no jobs and no history of its own.
    """
    if head.layout == RING:
        raise RingError
    return head


def check_layout(head: Head, layout: str) -> None:
    """For callers that have seen this queue in `layout` before.

    Raises:
        QueueReplacedError: the queue was converted since.
        RingError: the queue is a ring of shards.
    """
    if check_single(head).layout != layout:
        raise QueueReplacedError(f"a queue in the layout {head.layout!r}")


def check_same_queue(head: Head, queue_id: str | None) -> None:
    """`queue_id` is that of the opened queue; None if it has none, or did not exist yet.

    Raises:
        QueueReplacedError: the queue was converted since (and maybe back), or replaced by another one.
    """
    if queue_id is not None and head.queue_id not in (None, queue_id):
        raise QueueReplacedError(f"the queue {head.queue_id} and not {queue_id}")


def gone() -> CorruptQueueError:
    return CorruptQueueError(
        KEY, "it was deleted while this queue was open. Restore it from a backup, or open the queue anew"
    )


def not_a_queue(key: str, why: Exception | str, place: str | None = None) -> CorruptQueueError:
    return CorruptQueueError(
        key,
        f"{'this' if place is None else place} is not a queue that casque or jqueue wrote ({why}). A queue of casque's "
        'has "format", "layout" and "queue_id", one of jqueue\'s "version" and "jobs" alone. Nothing was changed: if '
        "it was a queue, restore the object from a backup or an older version; if it belongs to another program, keep "
        "the queue elsewhere",
    )
