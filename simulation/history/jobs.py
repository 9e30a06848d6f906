"""The calls of a record, sorted by the jobs they are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from simulation.history.call import Asked, Call, Claim, Outcome, Wish
from simulation.history.linear import ABSENT, DEAD, GONE, Step

TICK = "tick "
"""How the tag of a job begins that a schedule made: the rest names schedule and tick, so that a tick has one tag."""
ABOUT_ONE = ("ack", "nack", "heartbeat", "give_back", "cancel", "retry")


@dataclass
class JobCalls:
    """Everything the record says about one job."""

    id: str
    tag: str | None = None
    wish: Wish | None = None
    added: Call | None = None
    """The enqueue or admission that made it, if its caller learned its id or its tag shows it."""
    calls: list[Call] = field(default_factory=list)
    """Those that name it."""
    claimed: dict[int, tuple[Call, int]] = field(default_factory=dict)
    """By token: the dequeue, and how long its lease is."""
    steps: list[Step] = field(default_factory=list)
    died: bool = False


@dataclass
class Register:
    """All jobs of a record."""

    jobs: dict[str, JobCalls] = field(default_factory=dict)
    wishes: dict[str, tuple[Wish, Call]] = field(default_factory=dict)
    """By tag: what was asked for, and the call that asked."""
    ids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The jobs that were seen with a tag."""
    problems: list[str] = field(default_factory=list)

    def job(self, job_id: str) -> JobCalls:
        return self.jobs.setdefault(job_id, JobCalls(job_id))


def register(calls: Iterable[Call], final: Iterable[Claim], ended_ms: int) -> Register:
    """Sort calls by job. `final` is what a fresh reader found when everything was over."""
    found = Register()
    ordered = list(calls)
    for call in ordered:
        for wish in call.asked.wishes:
            found.wishes[wish.tag] = (wish, call)
    for claim in _seen(ordered, final):
        _note_tag(found, claim)
    for call in ordered:
        _note(found, call)
    _settle_additions(found)
    _note_final(found, final, ended_ms)
    return found


def _seen(calls: Iterable[Call], final: Iterable[Claim]) -> Iterator[Claim]:
    for call in calls:
        yield from call.claims
    yield from final


def _note_tag(found: Register, claim: Claim) -> None:
    job = found.job(claim.job)
    if not claim.tag:
        return  # only its id was shown
    if job.tag is not None and job.tag != claim.tag:
        found.problems.append(f"job {claim.job} was seen with two payloads: {job.tag} and {claim.tag}")
    job.tag = claim.tag
    found.ids[claim.tag].add(claim.job)


def _note(found: Register, call: Call) -> None:
    if call.verb == "dequeue":
        for claim in call.claims:
            _note_claim(found, call, claim)
    elif call.verb == "read":
        for claim in call.claims:
            found.job(claim.job).steps.append(_step(call, "read", claim.token, claim.state))
        if call.is_ok and not call.claims and call.asked.job is not None:
            found.job(call.asked.job).steps.append(_step(call, "read", seen=GONE))
    elif call.verb in ABOUT_ONE and call.asked.job is not None and call.outcome is not Outcome.FAILED:
        job = found.job(call.asked.job)
        job.calls.append(call)
        job.steps.append(_step(call, call.verb, call.asked.token))
    elif call.verb == "enqueue" and call.is_ok:
        asked = {wish.tag for wish in call.asked.wishes}
        for claim in call.claims:
            if claim.tag not in asked:
                found.job(claim.job).steps.append(_step(call, "held by key"))


def _note_claim(found: Register, call: Call, claim: Claim) -> None:
    job = found.job(claim.job)
    if claim.token in job.claimed:
        found.problems.append(f"job {claim.job}: token {claim.token} was given to two callers")
    job.claimed[claim.token] = (call, call.asked.lease_ms)
    job.steps.append(_step(call, "claim", claim.token))


def _settle_additions(found: Register) -> None:
    """Which enqueue made which job, judged by tags; what was refused must be nowhere."""
    for tag, ids in found.ids.items():
        known = found.wishes.get(tag)
        if known is None and tag.startswith(TICK):
            known = (Wish(tag), Call(Asked(tag, "tick", 0)))
        if known is None:
            found.problems.append(f"nobody asked for {tag}: {', '.join(sorted(ids))}")
            continue
        wish, call = known
        if len(ids) > 1:
            found.problems.append(f"{tag} is there {len(ids)} times: {', '.join(sorted(ids))}; {call}")
        if not call.may_have_acted:
            found.problems.append(f"{tag} is there although its {call.verb} was {call.outcome.value}: {call}")
        for job_id in ids:
            job = found.job(job_id)
            job.wish, job.added = wish, call
            job.steps.append(_step(call, "add"))


def _note_final(found: Register, final: Iterable[Claim], ended_ms: int) -> None:
    last: dict[str, Claim] = {}
    for claim in final:
        if claim.job in last:
            found.problems.append(f"job {claim.job} is there twice in the end")
        last[claim.job] = claim
    for job in found.jobs.values():
        claim = last.get(job.id, Claim(job.id, "", 0, ABSENT))
        job.died = claim.state == DEAD
        job.steps.append(Step("read", ended_ms, ended_ms, Outcome.OK, claim.token, claim.state, why="what was left"))
    for tag, (_, call) in found.wishes.items():
        # An admission names no jobs: its success is about all of them.
        answered = {tag} if call.verb == "admit" else {claim.tag for claim in call.claims}
        if call.is_ok and tag in answered and not found.ids[tag] & last.keys():
            found.problems.append(f"{tag} was acknowledged and is nowhere in the end: {call}")


def _step(call: Call, verb: str, token: int = 0, seen: str = "") -> Step:
    return Step(verb, call.began_ms, call.ended_ms, call.outcome, token, seen, str(call), call.asked.request)
