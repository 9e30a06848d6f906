"""Outcomes on the wires that have a flag for each kind: what they say, and that no two of them exclude each other."""

from __future__ import annotations

from itertools import combinations
from typing import get_args, get_type_hints

import pytest

from casque.clock import Random
from casque.errors import InvalidInputError
from casque.service import OutcomeKind, check_outcome
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages
from casque.transport.http.messages import OutcomeOf
from casque.transport.settling import single_kind

FLAGS = [kind for kind in OutcomeKind if kind not in (OutcomeKind.DONE, OutcomeKind.FAILED)]


def flagged(*kinds: OutcomeKind, error: str | None) -> pb.Outcome:
    message = pb.Outcome(job_id="j", token=1, error=error)
    for kind in kinds:
        setattr(message, kind, True)
    return message


def test_every_kind_but_done_and_failed_has_a_flag_over_grpc_and_a_name_over_http() -> None:
    fields = pb.Outcome.DESCRIPTOR.fields_by_name
    assert [kind for kind in OutcomeKind if kind in fields] == FLAGS
    named, _ = get_args(get_type_hints(OutcomeOf)["how"])
    assert {*get_args(named), "final"} == set(FLAGS)


@pytest.mark.parametrize("kind", FLAGS)
def test_a_flag_is_the_kind(kind: OutcomeKind) -> None:
    error = None if kind is OutcomeKind.SNOOZED else "why"
    said = messages.outcome(flagged(kind, error=error), Random(1))
    check_outcome(said)
    assert said.kind is kind


def test_without_a_flag_the_error_decides() -> None:
    assert messages.outcome(pb.Outcome(job_id="j", token=1), Random(1)).kind is OutcomeKind.DONE
    assert messages.outcome(pb.Outcome(job_id="j", token=1, error=""), Random(1)).kind is OutcomeKind.FAILED


@pytest.mark.parametrize("said", combinations(FLAGS, 2), ids=" and ".join)
def test_flags_that_exclude_each_other_are_refused(said: tuple[OutcomeKind, OutcomeKind]) -> None:
    message = flagged(*said, error="why")
    if set(said) == {OutcomeKind.FINAL, OutcomeKind.CRASHED}:
        assert messages.outcome(message, Random(1)).kind is OutcomeKind.FINAL, "dead is dead"
        return
    with pytest.raises(InvalidInputError, match=f"one of {said[0]}, {said[1]}, and not several"):
        messages.outcome(message, Random(1))


def test_more_than_two_flags_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="not several"):
        single_kind([OutcomeKind.FINAL, OutcomeKind.CRASHED, OutcomeKind.DECLINED])
