"""Wire forms of outcomes: what flags say, and the answers to many, which name only the refused ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from casque.errors import CasqueError, InvalidInputError, JobNotFoundError
from casque.service import Outcome, OutcomeKind
from casque.transport.errors import WireError, from_wire, name_of


def single_kind(said: Sequence[OutcomeKind]) -> OutcomeKind | None:
    """The kind of an outcome whose message has a flag for each of them.

    >>> single_kind([OutcomeKind.CRASHED, OutcomeKind.FINAL]).value
    'final'

    Raises:
        InvalidInputError: they exclude each other.
    """
    if len(said) < 2:
        return said[0] if said else None
    if set(said) == {OutcomeKind.FINAL, OutcomeKind.CRASHED}:
        return OutcomeKind.FINAL  # dead, whether or not its process died as well
    raise InvalidInputError(f"an outcome is one of {', '.join(said)}, and not several of these")


class Refused(msgspec.Struct, frozen=True):
    """Outcomes that were refused, and why."""

    error: str
    places: list[int]
    """Their positions, counted from 0 in the order of the request."""


def refused_among(answers: Sequence[CasqueError | None]) -> list[Refused]:
    """The refused outcomes. The caller knows the jobs and tokens, so it can rebuild the full errors."""
    places: dict[str, list[int]] = {}
    for place, answer in enumerate(answers):
        if answer is not None:
            places.setdefault(name_of(answer), []).append(place)
    return [Refused(error, found) for error, found in places.items()]


def answers_to(outcomes: Sequence[Outcome], refused: Sequence[Refused]) -> list[CasqueError | None]:
    answers: list[CasqueError | None] = [None] * len(outcomes)
    for why in refused:
        for place in why.places:
            answers[place] = _error(why.error, outcomes[place])
    return answers


def _error(name: str, outcome: Outcome) -> CasqueError:
    if name == JobNotFoundError.__name__:
        return JobNotFoundError(outcome.job_id)
    return from_wire(WireError(name, f"of job {outcome.job_id!r}", [outcome.job_id, outcome.token]))
