"""What a job keeps of a task: the path of its function, and its arguments."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec

from casque.clock import Random, new_id
from casque.types import from_ms

ENTRYPOINT = "django."
"""Before the name of a task's queue."""
TASK_HEADER = "django-task"
"""The path of the function. The payload has it too, but the archive does not keep large payloads."""

_ID = re.compile(r"[0-9a-f-]{36}-([0-9a-f]{11})")


class TaskCall(msgspec.Struct, frozen=True):
    """The payload of a job. A stored form: it only gains fields with defaults."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


def encode_call(path: str, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    return msgspec.json.encode(TaskCall(path, args, kwargs))


def decode_call(payload: bytes) -> TaskCall:
    """Raises msgspec.DecodeError for a payload that is not a task."""
    return msgspec.json.decode(payload, type=TaskCall)


def new_task_id(rng: Random, now_ms: int) -> str:
    """An id that says when it was made: the archive is searched from there on, and not from its beginning.

    >>> import random
    >>> task_id = new_task_id(random.Random(7), 1_700_000_000_000)
    >>> made_at(task_id)
    datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    """
    return f"{new_id(rng)}-{now_ms:011x}"


def made_at(task_id: str) -> datetime | None:
    """When an id was made; None for one that is not a task's."""
    found = _ID.fullmatch(task_id)
    return None if found is None else from_ms(int(found[1], 16))
