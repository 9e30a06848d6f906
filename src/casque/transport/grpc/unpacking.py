"""Decode the `packed` answers of List, Watch and Archive for casque's own client."""

from __future__ import annotations

from typing import Any

import msgspec

from casque.fields import GAINED
from casque.service import ArchivedJob, EventKind, QueueEvent
from casque.types import JobRecord

_jobs = msgspec.msgpack.Decoder(list[JobRecord])
_archived = msgspec.msgpack.Decoder(list[ArchivedJob])
_entries = msgspec.msgpack.Decoder(list[dict[str, Any]])
_KINDS = frozenset(kind.value for kind in EventKind)


def jobs(packed: bytes) -> list[JobRecord]:
    return _jobs.decode(packed)


def archive(packed: bytes) -> list[ArchivedJob]:
    return _archived.decode(packed)


_SEQUENCES = tuple(field.name for field in GAINED if isinstance(field.default, tuple))


def events(packed: bytes) -> list[QueueEvent]:
    """Events of kinds that this release does not know are skipped."""
    return [_event(entry) for entry in _entries.decode(packed) if entry["kind"] in _KINDS]


def _event(entry: dict[str, Any]) -> QueueEvent:
    fields = entry["fields"]
    if entry["kind"] == EventKind.REMEMBERED:
        # On the wire every sequence is a list; embedded queues return tuples here.
        fields["jobs"] = tuple([tuple(job) for job in fields["jobs"]])
    elif entry["kind"] == EventKind.ADDED:
        fields |= {name: tuple(fields[name]) for name in _SEQUENCES if name in fields}
    return QueueEvent(entry["position"], entry["index"], entry["at"], EventKind(entry["kind"]), entry["job_id"], fields)
