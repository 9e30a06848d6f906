"""What the log says against what the archive says, job by job. The calls themselves are `casque.testing.history`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from casque.service import ArchivedJob
from casque.testing.chaos.chronicle import Chronicle
from casque.types import JobState

SHOWN = 5
ENDED = (JobState.DONE, JobState.CANCELLED)


def judge(chronicle: Chronicle | None, archive: Sequence[ArchivedJob]) -> list[str]:
    """Everything that is wrong; nothing, if all is well. A document has no history, and a ring has several: then there
    is no chronicle, and the archive is looked at by itself."""
    problems = list(_each_once(archive))
    if chronicle is not None:
        problems += chronicle.problems
        problems += _log_and_archive_agree(chronicle, archive)
    return problems


def _each_once(archive: Sequence[ArchivedJob]) -> Iterator[str]:
    finished = Counter(job.id for job in archive)
    yield from _some("in the archive more than once", [f"{job}: {n} times" for job, n in finished.items() if n > 1])
    dead = [f"{job.id}: {job.state}" for job in archive if job.state not in ENDED]
    yield from _some("finished, but neither done nor cancelled", dead)


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
