"""How settings reach the shards of a ring, searched completely; each rule dropped in turn is missed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the model is no part of the installed package

from specs.search import search
from specs.settings_model import (
    ALL_SETTINGS_RULES,
    SETTINGS_FOUND_IN,
    SETTINGS_SCENARIOS,
    SettingsModel,
    SettingsRule,
    SettingsScenario,
)


@pytest.mark.parametrize("chosen", SETTINGS_SCENARIOS, ids=lambda one: one.name)
def test_nothing_goes_wrong_under_all_rules_of_settings(chosen: SettingsScenario) -> None:
    outcome = search(SettingsModel(chosen))

    assert outcome.safe, "\n".join([*outcome.trace, outcome.violation])
    assert outcome.states > 2_000


@pytest.mark.parametrize("rule", list(SettingsRule), ids=str)
def test_without_this_rule_settings_break_a_promise(rule: SettingsRule) -> None:
    [chosen] = [one for one in SETTINGS_SCENARIOS if one.name == SETTINGS_FOUND_IN[rule]]

    outcome = search(SettingsModel(chosen, ALL_SETTINGS_RULES - {rule}))

    assert not outcome.safe
    assert outcome.trace
