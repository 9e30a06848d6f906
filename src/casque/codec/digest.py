"""One digest for everything that a queue holds: states with equal digests are the same queue."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from casque.codec.stored import encode_job, stored_requests
from casque.state import State

_encode = msgspec.json.Encoder().encode

_ORDER = ("admissions", "schedules", "gates", "zones", "zone_leases", "vigils", "ring")
"""In which they came to be. A queue that never had any of one has the digest that it had before there were any."""
_ASIDE = ("staged", "writers_forgotten")
"""What a queue knows of its own log, and what the digest tells in another way."""


def state_digest(state: State) -> str:
    """Covers jobs, tokens, counters, remembered requests, writers and what the facets hold; not the position, which a
    fence moves as well."""
    sha256 = hashlib.sha256()
    for part in (state.counters, state.writers, stored_requests(state.requests)):
        sha256.update(_encode(part) + b"\n")
    if state.writers_forgotten:
        sha256.update(b"%d\n" % state.writers_forgotten)
    for data in compared_facets(state).values():
        sha256.update(_encode(data) + b"\n")
    for job in sorted(state.jobs.values(), key=lambda job: job.sequence):
        sha256.update(encode_job(job) + b"\n")
    return sha256.hexdigest()


def compared_facets(state: State) -> dict[str, Any]:
    """What the facets hold, by their stored names: the same for the same queue, however it came to be."""
    stored = state.facets.stored(state)
    if "zones" in stored:
        stored["zones"] = sorted(stored["zones"].items())
    if "zone_leases" in stored:
        stored["zone_leases"].sort(key=lambda lease: lease.zone)
    names = dict.fromkeys((*_ORDER, *stored))
    return {name: stored[name] for name in names if name in stored and name not in _ASIDE}
