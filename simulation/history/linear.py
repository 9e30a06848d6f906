"""Whether the calls about one job fit one order.

A job is a small machine: absent, waiting, running with a token, dead, done or cancelled. The calls are linearizable if
each can be given a moment between its start and its end at which it took effect, so that the machine allows all of
them in that order. A call whose outcome is unknown may have taken effect at any moment after its start, or not at all.
A lease may run out between any two calls: how long it must last is a rule about time (`rules.py`), not about order. A
job that has one attempt is dead then, and only a retry lets it be claimed again.

The search is that of Wing and Gong: try each call that may come next, remember where a search has already failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulation.history.call import Outcome

ABSENT, WAITING, RUNNING, DEAD, DONE, CANCELLED = "absent", "waiting", "running", "dead", "done", "cancelled"
GONE = "gone"
"""In a read: not in the queue, finished or never there."""
FINISHED = (DONE, CANCELLED)
STEPS_MAX = 200_000


class Step(NamedTuple):
    """What one call says about one job."""

    verb: str
    began_ms: int
    ended_ms: int
    outcome: Outcome
    token: int = 0
    seen: str = ""
    """In a read: the state it found."""
    why: str = ""
    """For people."""
    request: str | None = None
    """Steps of one request are attempts at one thing."""


class Machine(NamedTuple):
    state: str = ABSENT
    token: int = 0
    """Of the last claim that is known."""
    once: bool = False
    """It has one attempt."""
    heard: bool = True
    """Whether a caller was given that claim. One that never arrived may have been given back unseen."""


class TooManyOrders(Exception):  # noqa: N818  not an error of the queue
    """The search gave up; the record of this job is too tangled to decide."""


def fits(steps: Sequence[Step], *, once: bool = False) -> bool:
    """Whether some order explains all of them. `once`: the job has one attempt."""
    ordered = sorted(steps, key=lambda step: (step.began_ms, step.ended_ms))
    everything = (1 << len(ordered)) - 1
    optional = sum(1 << at for at, step in enumerate(ordered) if step.outcome is Outcome.UNKNOWN)
    first = [_refusals_of(step.request, ordered) if optional >> at & 1 else 0 for at, step in enumerate(ordered)]
    failed: set[tuple[int, Machine]] = set()
    budget = STEPS_MAX
    stack = [(everything, Machine(once=once))]
    while stack:
        left, machine = stack.pop()
        if not left & ~optional:
            return True
        if (left, machine) in failed:
            continue
        failed.add((left, machine))
        budget -= 1
        if not budget:
            raise TooManyOrders
        deadline = min(step.ended_ms for at, step in enumerate(ordered) if left >> at & 1)
        for at, step in enumerate(ordered):
            if step.began_ms > deadline:
                break
            if left >> at & 1 and not left & first[at]:
                stack += [(left & ~(1 << at), after) for after in _after(machine, step)]
    return False


def _refusals_of(request: str | None, ordered: Sequence[Step]) -> int:
    """A refusal says that the request had not been carried out until then, whatever its other attempts do later."""
    refused = (at for at, step in enumerate(ordered) if step.outcome is Outcome.REFUSED and step.request == request)
    return sum(1 << at for at in refused) if request is not None else 0


def _after(now: Machine, step: Step) -> Iterator[Machine]:
    """The states in which this call may leave the job, if it may take effect now."""
    effect = _refused if step.outcome is Outcome.REFUSED else _carried_out
    for before in _unseen(now):
        yield from effect(before, step)


def _unseen(now: Machine) -> Iterator[Machine]:
    """What may have become of a job without any call that was recorded: its lease ran out, or a claim that no caller
    heard of came and went."""
    yield now
    if now.state == RUNNING and not (now.once and now.heard):
        yield now._replace(state=WAITING)
    if now.state in (WAITING, RUNNING):
        yield now._replace(state=DEAD)


def _carried_out(now: Machine, step: Step) -> Iterator[Machine]:
    held = _is_held(now, step)
    match step.verb:
        case "add" if now.state == ABSENT:
            yield now._replace(state=WAITING)
        case "held by key" if now.state in (WAITING, RUNNING):
            yield now
        case "claim" if now.state == WAITING and step.token > now.token:
            yield now._replace(state=RUNNING, token=step.token, heard=True)
        case "ack" if held:
            yield now._replace(state=DONE)
        case "nack" if held:
            yield now._replace(state=DEAD)
            if not now.once:
                yield now._replace(state=WAITING)
        case "give_back":
            # Of a claim that is over it is a success that changes nothing.
            yield now._replace(state=WAITING) if held else now
        case "heartbeat" if held:
            yield now
        case "cancel" if now.state in (WAITING, RUNNING):
            yield now._replace(state=CANCELLED)
        case "retry" if now.state == DEAD:
            yield now._replace(state=WAITING)
        case "read":
            yield from _read(now, step)


def _refused(now: Machine, step: Step) -> Iterator[Machine]:
    match step.verb:
        case "ack" | "nack" | "heartbeat" | "give_back":
            possible = not _is_held(now, step)
        case "cancel":
            possible = now.state in (ABSENT, DEAD, *FINISHED)
        case "retry":
            possible = now.state != DEAD
        case _:
            possible = True
    if possible:
        yield now


def _read(now: Machine, step: Step) -> Iterator[Machine]:
    if step.seen == RUNNING and now.state == WAITING and step.token > now.token:
        yield now._replace(state=RUNNING, token=step.token, heard=False)  # by a caller who never heard of it
    elif step.seen == RUNNING:
        if _is_held(now, step):
            yield now
    elif step.seen == DONE:
        if now.state == DONE and step.token in (0, now.token):
            yield now
    elif step.seen == now.state or (step.seen == GONE and now.state in (ABSENT, *FINISHED)):
        yield now


def _is_held(now: Machine, step: Step) -> bool:
    return now.state == RUNNING and now.token == step.token
