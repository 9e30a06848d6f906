"""Names of the objects that hold large payloads."""

from __future__ import annotations

import re

from casque.clock import Random, new_nonce
from casque.codec.archive import hour_of
from casque.errors import CorruptQueueError
from casque.types import JobRecord

BLOBS = "blobs/"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"blobs/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}/[A-Za-z0-9_-]{1,64}-[0-9a-f]{16}")


def blob_key(job_id: str, at_ms: int, rng: Random) -> str:
    """`blobs/2026-02-15T10/<job>-<nonce>`: sweeping goes by the hour, people by the job."""
    name = job_id if _PLAIN.fullmatch(job_id) else "job"
    return f"{BLOBS}{hour_of(at_ms)}/{name}-{new_nonce(rng)}"


def is_blob(key: object) -> bool:
    """Whether this is the name of a large payload, exactly as `blob_key` makes them. Nothing else is ever read as a
    payload or deleted with a job."""
    return type(key) is str and _KEY.fullmatch(key) is not None


def blob_hour(key: str) -> str:
    return key.removeprefix(BLOBS).partition("/")[0]


def missing_blob(record: JobRecord) -> CorruptQueueError:
    """The error for a payload that is missing from the store."""
    assert record.spec.blob is not None
    return CorruptQueueError(
        record.spec.blob,
        f"the payload of job {record.spec.id!r} ({record.spec.blob_bytes:,} bytes) is missing or cut short: it was "
        "deleted. Restore the object from a backup, or cancel the job",
    )
