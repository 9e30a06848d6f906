"""Whether the calls about one job fit one order.

A job is a small machine: absent, waiting, running with a token, dead, done or cancelled. The calls are linearizable if
each can be given a moment between its start and its end at which it took effect, so that the machine allows all of
them in that order. A call whose outcome is unknown may have taken effect at any moment after its start, or not at all.
A lease may run out between any two calls: how long it must last is a rule about time (`rules.py`), not about order.

The search is that of Wing and Gong: try each call that may come next, remember where a search has already failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from casque.testing.history.call import Outcome

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


class Machine(NamedTuple):
    state: str = ABSENT
    token: int = 0
    """Of the last claim that is known."""


class TooManyOrders(Exception):  # noqa: N818  not an error of the queue
    """The search gave up; the record of this job is too tangled to decide."""


def fits(steps: Sequence[Step]) -> bool:
    """Whether some order explains all of them."""
    ordered = sorted(steps, key=lambda step: (step.began_ms, step.ended_ms))
    everything = (1 << len(ordered)) - 1
    optional = sum(1 << at for at, step in enumerate(ordered) if step.outcome is Outcome.UNKNOWN)
    failed: set[tuple[int, Machine]] = set()
    budget = STEPS_MAX
    stack = [(everything, Machine())]
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
            if left >> at & 1:
                stack += [(left & ~(1 << at), after) for after in _after(machine, step)]
    return False


def _after(now: Machine, step: Step) -> Iterator[Machine]:
    """The states in which this call may leave the job, if it may take effect now."""
    if step.outcome is Outcome.REFUSED:
        yield from _refused(now, step)
        return
    held = now.state == RUNNING and now.token == step.token
    unfinished = now.state in (WAITING, RUNNING, DEAD)
    match step.verb:
        case "add" if now.state == ABSENT:
            yield Machine(WAITING, 0)
        case "held by key" if unfinished:
            yield now
        case "claim" if now.state in (WAITING, RUNNING) and step.token > now.token:
            yield Machine(RUNNING, step.token)
        case "ack" if held:
            yield Machine(DONE, now.token)
        case "nack" if held:
            yield Machine(WAITING, now.token)
            yield Machine(DEAD, now.token)
        case "give_back":
            # Of a claim that is over it is a success that changes nothing.
            yield Machine(WAITING, now.token) if held else now
        case "heartbeat" if held:
            yield now
        case "cancel" if unfinished:
            yield Machine(CANCELLED, now.token)
        case "retry" if now.state == DEAD:
            yield Machine(WAITING, now.token)
        case "read":
            yield from _read(now, step)


def _refused(now: Machine, step: Step) -> Iterator[Machine]:
    match step.verb:
        case "ack" | "nack" | "heartbeat" | "give_back":
            if now.state == RUNNING and now.token == step.token:
                yield Machine(WAITING, now.token)  # its lease ran out just before
            else:
                yield now
        case "cancel":
            if now.state in (ABSENT, *FINISHED):
                yield now
        case _:
            yield now


def _read(now: Machine, step: Step) -> Iterator[Machine]:
    if step.seen == RUNNING:
        if now.state == RUNNING and now.token == step.token:
            yield now
        elif now.state in (WAITING, RUNNING) and step.token > now.token:
            yield Machine(RUNNING, step.token)  # a claim whose caller never heard of it
    elif step.seen == WAITING:
        if now.state in (WAITING, RUNNING):
            yield Machine(WAITING, now.token)
    elif step.seen == DEAD:
        if now.state in (WAITING, RUNNING, DEAD):
            yield Machine(DEAD, now.token)
    elif step.seen == DONE:
        if now.state == DONE and step.token in (0, now.token):
            yield now
    elif step.seen == now.state or (step.seen == GONE and now.state in (ABSENT, *FINISHED)):
        yield now
