"""What the log says against what the archive says, job by job. The calls themselves are `simulation.history`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from casque.service import ArchivedJob
from casque.types import JobState
from simulation.chaos.chronicle import Chronicle

SHOWN = 5
ENDED = (JobState.DONE, JobState.CANCELLED)


def judge(chronicle: Chronicle | None, archive: Sequence[ArchivedJob], dead: Collection[str] = ()) -> list[str]:
    """Everything that is wrong; nothing, if all is well. `dead`: the jobs that are left so in the queue.

    A document has no history, and a ring has several: then there is no chronicle, and the archive is looked at by
    itself."""
    problems = list(_each_once(archive))
    if chronicle is not None:
        problems += chronicle.problems
        problems += _log_and_archive_agree(chronicle, archive)
        problems += _log_and_queue_agree(chronicle, dead)
    return problems


def _each_once(archive: Sequence[ArchivedJob]) -> Iterator[str]:
    """Each job ends once. It may die more often than that, if it is retried, and each death is there once."""
    ends = Counter(job.id for job in archive if job.state in ENDED)
    yield from _some("in the archive more than once", [f"{job}: {n} times" for job, n in ends.items() if n > 1])
    deaths = Counter((job.id, job.position) for job in archive if job.state is JobState.DEAD)
    yield from _some("one death archived twice", [f"{job} at {at}" for (job, at), n in deaths.items() if n > 1])
    others = [f"{job.id}: {job.state}" for job in archive if job.state not in (*ENDED, JobState.DEAD)]
    yield from _some("in the archive, and not over", others)


def _log_and_archive_agree(chronicle: Chronicle, archive: Sequence[ArchivedJob]) -> Iterator[str]:
    shelf = {job.id: job for job in archive if job.state in ENDED}
    lives = {job: life for job, life in chronicle.lives.items() if not life.dead}
    yield from _some("in the archive, and not in the log", [job for job in shelf if job not in lives])
    yield from _some("in the log, and not finished", [job for job, life in lives.items() if life.finished is None])
    yield from _some("in the log, and not in the archive", [job for job in lives if job not in shelf])
    differ = [
        f"{job}: position {shelf[job].position}, token {shelf[job].token}; by the log {life.finished} and {life.token}"
        for job, life in lives.items()
        if job in shelf and (shelf[job].position, shelf[job].token) != (life.finished, life.token)
    ]
    yield from _some("log and archive differ", differ)
    archived = {(job.id, job.position) for job in archive if job.state is JobState.DEAD}
    died = {(job, at) for job, life in chronicle.lives.items() for at in life.deaths}
    yield from _some("log and archive differ about deaths", [f"{job} at {at}" for job, at in sorted(archived ^ died)])


def _log_and_queue_agree(chronicle: Chronicle, dead: Collection[str]) -> Iterator[str]:
    died = {job for job, life in chronicle.lives.items() if life.dead}
    yield from _some("dead in the log, and not in the queue", sorted(died - set(dead)))
    yield from _some("dead in the queue, and not in the log", sorted(set(dead) - died))


def _some(what: str, cases: list[str]) -> Iterator[str]:
    if cases:
        more = f", and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
        yield f"{what}: {', '.join(cases[:SHOWN])}{more}"
