"""The rules by which visits of short-lived processes add up, searched completely at a small size."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the model is no part of the installed package

from specs.visit_model import ALL_VISIT_RULES, VisitModel, VisitRule


def reached(model: VisitModel) -> Iterator[tuple[Any, str]]:
    """Every state, breadth first, and what is wrong with it."""
    known: set[Hashable] = {model.first}
    level = [model.first]
    while level:
        following = []
        for state in level:
            for _, after in model.steps(state):
                if after not in known:
                    known.add(after)
                    following.append(after)
                    yield after, model.violation(after)
        level = following


def test_visits_never_add_up_to_more_than_the_time_that_passed() -> None:
    found = list(reached(VisitModel(visitors=2, beats=2)))
    assert [wrong for _, wrong in found if wrong] == []
    assert any(state.ended for state, _ in found), "and yet they do add up"
    assert len(found) > 10_000


@pytest.mark.parametrize("rule", list(VisitRule), ids=lambda rule: rule.name)
def test_without_this_rule_a_lease_ends_early(rule: VisitRule) -> None:
    model = VisitModel(visitors=2, beats=1, rules=ALL_VISIT_RULES - {rule})
    assert any(wrong for _, wrong in reached(model))
