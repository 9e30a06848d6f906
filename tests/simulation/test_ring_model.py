"""The rules of a ring, searched completely for one zone; each rule dropped in turn is missed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the model is no part of the installed package

from specs.ring_model import ALL_RING_RULES, RING_FOUND_IN, RING_SCENARIOS, RingModel, RingRule, RingScenario
from specs.search import search

LARGE = ("admitted",)
CHOSEN = [
    pytest.param(one, id=one.name, marks=[pytest.mark.long] if one.name in LARGE else []) for one in RING_SCENARIOS
]


@pytest.mark.parametrize("chosen", CHOSEN)
def test_nothing_goes_wrong_under_all_rules_of_a_ring(chosen: RingScenario) -> None:
    outcome = search(RingModel(chosen))

    assert outcome.safe, "\n".join([*outcome.trace, outcome.violation])
    assert outcome.states > 200


@pytest.mark.parametrize("rule", list(RingRule), ids=str)
def test_without_this_rule_a_ring_breaks_a_promise(rule: RingRule) -> None:
    [chosen] = [one for one in RING_SCENARIOS if one.name == RING_FOUND_IN[rule]]

    outcome = search(RingModel(chosen, ALL_RING_RULES - {rule}))

    assert not outcome.safe
    assert outcome.trace
