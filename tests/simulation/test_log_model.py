"""The protocol of the log, searched completely at a small size; `python -m specs --size large` goes further."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the model is no part of the installed package

from specs.log_model import ALL_RULES, Model, Rule, Scenario
from specs.scenarios import FOUND_IN, SCENARIOS, Size, scenario
from specs.search import Outcome, search


@pytest.mark.parametrize("chosen", SCENARIOS[Size.SMALL], ids=lambda chosen: chosen.name)
def test_nothing_goes_wrong_under_all_rules(chosen: Scenario) -> None:
    outcome = search(Model(chosen))

    assert outcome.safe, _told(outcome)
    assert outcome.states > 1000


@pytest.mark.parametrize("rule", list(Rule), ids=str)
def test_without_this_rule_an_operation_is_lost_or_done_twice(rule: Rule) -> None:
    outcome = search(Model(scenario(FOUND_IN[rule]), ALL_RULES - {rule}))

    assert not outcome.safe
    lost = _operations(outcome)
    assert lost, outcome.violation
    # The trace is one to read: it tells how each of them was asked for or written.
    for op in lost:
        assert any(re.search(rf"\b{op}\b", step) for step in outcome.trace), _told(outcome)


def _operations(outcome: Outcome) -> list[str]:
    """The operations that the violation says are lost, done twice, or not seen by someone who should see them."""
    patterns = (
        r"acknowledged (.+) is lost",
        r": (.+) lost to it",
        r"without (.+), acknowledged",
        r"(.+) has two effects",
    )
    found = next(filter(None, (re.search(pattern, outcome.violation) for pattern in patterns)), None)
    return re.findall(r"\b[a-h]\b", found.group(1)) if found else []


def _told(outcome: Outcome) -> str:
    return "\n".join([*outcome.trace, outcome.violation])
