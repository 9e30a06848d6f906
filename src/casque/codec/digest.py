"""One digest for everything that a queue holds: states with equal digests are the same queue."""

from __future__ import annotations

import hashlib

import msgspec

from casque.codec.stored import encode_job, stored_requests
from casque.state import State

_encode = msgspec.json.Encoder().encode


def state_digest(state: State) -> str:
    """Covers jobs, tokens, counters, remembered requests, writers, sources, schedules, gates, and the rules and
    leases of zones; not the position, which a fence moves as well."""
    sha256 = hashlib.sha256()
    for part in (state.counters, state.writers, stored_requests(state.requests)):
        sha256.update(_encode(part) + b"\n")
    if state.writers_forgotten:
        sha256.update(b"%d\n" % state.writers_forgotten)
    if state.admissions:  # without admissions the digest stays the same as in releases that had none
        sha256.update(_encode(state.admissions) + b"\n")
    if state.schedules:
        sha256.update(_encode(list(state.schedules.values())) + b"\n")
    if state.gates:
        sha256.update(_encode(state.gates) + b"\n")
    if state.rules:
        sha256.update(_encode(sorted(state.rules.items())) + b"\n")
    if state.zone_leases:
        sha256.update(_encode(sorted(state.zone_leases.values(), key=lambda lease: lease.zone)) + b"\n")
    if watched := state.watched():
        sha256.update(_encode(watched) + b"\n")
    if state.ring is not None:
        sha256.update(_encode(state.ring) + b"\n")
    for job in sorted(state.jobs.values(), key=lambda job: job.sequence):
        sha256.update(encode_job(job) + b"\n")
    return sha256.hexdigest()
