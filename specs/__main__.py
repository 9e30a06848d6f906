"""`python -m specs --size small|medium|large [--without RULE]`: search, and say what was found.

Exits with 0 if all rules hold, or if the search shows what dropping one breaks; with 1 if it finds the opposite."""

from __future__ import annotations

import argparse
import sys
from typing import TypeAlias

from specs.log_model import ALL_RULES, Model, Rule
from specs.ring_model import ALL_RING_RULES, RING_FOUND_IN, RING_SCENARIOS, RingModel, RingRule
from specs.scenarios import FOUND_IN, SCENARIOS, Size, scenario
from specs.search import Model as Searched
from specs.search import Outcome, search
from specs.settings_model import (
    ALL_SETTINGS_RULES,
    SETTINGS_FOUND_IN,
    SETTINGS_SCENARIOS,
    SettingsModel,
    SettingsRule,
)

AnyRule: TypeAlias = Rule | RingRule | SettingsRule


def main() -> int:
    """Search every scenario of a size, or, with a rule dropped, the one that shows what the rule is for."""
    arguments = _arguments()
    dropped: AnyRule | None = arguments.without
    models = _without(dropped, arguments.only, arguments.size) if dropped else _all(arguments.size)
    chosen = [(name, model) for name, model in models if arguments.only in ("", name)]
    outcomes = [_run(name, model) for name, model in chosen]
    states, seconds = sum(one.states for one in outcomes), sum(one.seconds for one in outcomes)
    safe = all(outcome.safe for outcome in outcomes)
    verdict = "no violation" if safe else "VIOLATION"
    rate = states / max(seconds, 1e-6)
    _say(f"{arguments.size}: {verdict}, {states:,} states in {seconds:.1f} s ({rate:,.0f} per second)")
    return 0 if safe is (dropped is None) else 1


def _all(size: Size) -> list[tuple[str, Searched]]:
    """The log at this size, and the ring and its settings, which have one."""
    log = [(one.name, Model(one, ALL_RULES)) for one in SCENARIOS[size]]
    ring = [(one.name, RingModel(one)) for one in RING_SCENARIOS]
    return [*log, *ring, *((one.name, SettingsModel(one)) for one in SETTINGS_SCENARIOS)]


def _without(dropped: AnyRule, only: str, size: Size) -> list[tuple[str, Searched]]:
    if isinstance(dropped, Rule):
        chosen = scenario(only or FOUND_IN[dropped], size)
        return [(chosen.name, Model(chosen, ALL_RULES - {dropped}))]
    if isinstance(dropped, RingRule):
        name, rules = only or RING_FOUND_IN[dropped], ALL_RING_RULES - {dropped}
        return [(one.name, RingModel(one, rules)) for one in RING_SCENARIOS if one.name == name]
    name, left = only or SETTINGS_FOUND_IN[dropped], ALL_SETTINGS_RULES - {dropped}
    return [(one.name, SettingsModel(one, left)) for one in SETTINGS_SCENARIOS if one.name == name]


def _rule(text: str) -> AnyRule:
    kinds: tuple[type[AnyRule], ...] = (RingRule, SettingsRule)
    return next((kind(text) for kind in kinds if text in set(kind)), None) or Rule(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m specs", description="Search the models of the log, the ring and its settings."
    )
    parser.add_argument("--size", type=Size, choices=list(Size), default=Size.SMALL)
    rules = ", ".join([*Rule, *RingRule, *SettingsRule])
    parser.add_argument("--without", type=_rule, metavar="RULE", help=rules)
    parser.add_argument("--only", default="", metavar="SCENARIO", help="one scenario instead of all")
    return parser.parse_args()


def _run(name: str, model: Searched) -> Outcome:
    def progress(depth: int, states: int, seconds: float) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{name}: {depth} steps deep, {states:,} states, {seconds:.0f} s ")
            sys.stderr.flush()

    outcome = search(model, progress=progress)
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    rate = outcome.states / max(outcome.seconds, 1e-6)
    figures = f"{outcome.states:,} states, {outcome.depth} steps, {outcome.seconds:.1f} s, {rate:,.0f} per second"
    _say(f"{name:<15} {figures}: {outcome.violation or 'no violation'}")
    for number, step in enumerate(outcome.trace, 1):
        _say(f"  {number:>3}  {step}")
    return outcome


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
