"""All of it: from a record to what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulation.history.attempts import disagreements, merge
from simulation.history.batches import admitted_once, whole_or_absent
from simulation.history.call import Call, Claim
from simulation.history.gates import gates_kept
from simulation.history.jobs import JobCalls, register
from simulation.history.linear import TooManyOrders, fits
from simulation.history.rules import fifo_kept, keys_unique, leases_exclusive, zone_leases_exclusive

SHOWN = 10
"""Findings of one kind that are listed."""


@dataclass
class Verdict:
    """What a record shows."""

    problems: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """Jobs whose calls overlap in too many ways to decide."""
    calls: int = 0
    jobs: int = 0
    unknown: int = 0
    """Calls whose callers never learned what became of them."""


def check(calls: Sequence[Call], final: Sequence[Claim], *, ended_ms: int) -> Verdict:
    """Hold a record against the promises. `final` is what a fresh reader found at `ended_ms`, when all was quiet:
    every job that is left, waiting or finished."""
    verdict = Verdict(calls=len(calls), unknown=sum(1 for call in calls if call.ended_ms > ended_ms))
    whole = sorted(merge(calls), key=lambda call: call.began_ms)
    found = register(whole, final, ended_ms)
    verdict.jobs = len(found.jobs)
    _take(verdict, disagreements(calls))
    _take(verdict, found.problems)
    _take(verdict, leases_exclusive(found.jobs))
    _take(verdict, keys_unique(found.jobs))
    _take(verdict, fifo_kept(found.jobs))
    _take(verdict, zone_leases_exclusive(whole))
    _take(verdict, gates_kept(whole, found.jobs))
    _take(verdict, admitted_once(calls))
    _take(verdict, whole_or_absent(found))
    _take(verdict, (_explained(job) for job in found.jobs.values() if not _is_linear(job, verdict)))
    return verdict


def _is_linear(job: JobCalls, verdict: Verdict) -> bool:
    try:
        return fits(job.steps, once=job.wish is not None and job.wish.once)
    except TooManyOrders:
        verdict.undecided.append(job.id)
        return True


def _take(verdict: Verdict, problems: Iterable[str]) -> None:
    found = list(problems)
    verdict.problems += found[:SHOWN]
    if len(found) > SHOWN:
        verdict.problems.append(f"and {len(found) - SHOWN} more of this kind")


def _explained(job: JobCalls) -> str:
    lines = [f"no order explains job {job.id} ({job.tag}):"]
    for step in sorted(job.steps, key=lambda step: step.began_ms):
        seen = f" {step.seen}" if step.seen else ""
        lines.append(f"    {step.verb}{seen} {step.token or ''} {step.why}")
    return "\n".join(lines)
