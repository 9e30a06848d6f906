"""The account: what was acknowledged, against the log, against the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from casque.service import ArchivedJob
from casque.testing.chaos.chronicle import Chronicle
from casque.testing.chaos.diary import Ledger
from casque.types import JobState

SHOWN = 5


def judge(ledger: Ledger, chronicle: Chronicle | None, archive: Sequence[ArchivedJob]) -> list[str]:
    """Everything that is wrong; nothing, if all is well. Without a chronicle (a document has no history) the archive
    alone is held against the diaries."""
    problems = [*_promises_kept(ledger, archive), *_nothing_invented(ledger, archive), *_one_ack_each(ledger, archive)]
    if chronicle is not None:
        problems += chronicle.problems
        problems += _log_and_archive_agree(chronicle, archive)
    return problems


def _promises_kept(ledger: Ledger, archive: Sequence[ArchivedJob]) -> Iterator[str]:
    finished = Counter(job.id for job in archive)
    lost = [f"{job} ({payload})" for payload, job in ledger.enqueued.items() if job not in finished]
    yield from _some("acknowledged, and not in the archive", lost)
    yield from _some("in the archive more than once", [f"{job}: {n} times" for job, n in finished.items() if n > 1])
    yield from _some(
        "finished, but not done", [f"{job.id}: {job.state}" for job in archive if job.state is not JobState.DONE]
    )
    yield from _some("acknowledged twice to its producer", ledger.doubled)


def _nothing_invented(ledger: Ledger, archive: Sequence[ArchivedJob]) -> Iterator[str]:
    payloads = Counter(job.payload.decode() for job in archive)
    yield from _some("nobody enqueued this", [p for p in payloads if p not in ledger.offered])
    yield from _some("stored more than once", [f"{p}: {n} jobs" for p, n in payloads.items() if n > 1])


def _one_ack_each(ledger: Ledger, archive: Sequence[ArchivedJob]) -> Iterator[str]:
    """Who was told that its ack counts held the last claim; everybody else was refused, or never got an answer."""
    acks = Counter(job for job, _ in ledger.acks)
    yield from _some("more than one ack was accepted", [f"{job}: {n}" for job, n in acks.items() if n > 1])
    token_of = {job.id: job.token for job in archive}
    stale = [
        f"{job}: token {t}, its last claim was {token_of.get(job)}" for job, t in ledger.acks if token_of.get(job) != t
    ]
    yield from _some("a stale ack was accepted", stale)
    asked = [job.id for job in archive if (job.id, job.token) not in ledger.tried_acks]
    yield from _some("done, and nobody had said so", asked)
    twice = [f"{job} with token {token}: {n} times" for (job, token), n in ledger.claims.items() if n > 1]
    yield from _some("one claim was given to two callers", twice)
    tokens = Counter(token for _, token in ledger.claims)
    yield from _some("one token went to several jobs", [f"{token}: {n}" for token, n in tokens.items() if n > 1])


def _log_and_archive_agree(chronicle: Chronicle, archive: Sequence[ArchivedJob]) -> Iterator[str]:
    shelf = {job.id: job for job in archive}
    lives = chronicle.lives
    yield from _some("in the archive, and not in the log", [job for job in shelf if job not in lives])
    yield from _some("in the log, and not finished", [job for job, life in lives.items() if life.finished is None])
    yield from _some("in the log, and not in the archive", [job for job in lives if job not in shelf])
    differ = [
        f"{job}: position {shelf[job].position}, token {shelf[job].token}; by the log {life.finished} and {life.token}"
        for job, life in lives.items()
        if job in shelf and (shelf[job].position, shelf[job].token) != (life.finished, life.token)
    ]
    yield from _some("log and archive differ", differ)


def _some(what: str, cases: list[str]) -> Iterator[str]:
    if cases:
        more = f", and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
        yield f"{what}: {', '.join(cases[:SHOWN])}{more}"
