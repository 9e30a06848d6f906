"""`python -m specs --size small|medium|large [--without RULE]`: search, and say what was found.

Exits with 0 if all rules hold, or if the search shows what dropping one breaks; with 1 if it finds the opposite."""

from __future__ import annotations

import argparse
import sys

from specs.log_model import ALL_RULES, Model, Rule, Scenario
from specs.scenarios import FOUND_IN, SCENARIOS, Size, scenario
from specs.search import Outcome, search


def main() -> int:
    """Search every scenario of a size, or, with a rule dropped, the one that shows what the rule is for."""
    arguments = _arguments()
    dropped: Rule | None = arguments.without
    size: Size = arguments.size
    if dropped is None:
        chosen = [one for one in SCENARIOS[size] if arguments.only in ("", one.name)]
    else:
        chosen = [scenario(arguments.only or FOUND_IN[dropped], size)]
    outcomes = [_run(one, ALL_RULES - {dropped} if dropped else ALL_RULES) for one in chosen]
    states, seconds = sum(one.states for one in outcomes), sum(one.seconds for one in outcomes)
    safe = all(outcome.safe for outcome in outcomes)
    verdict = "no violation" if safe else "VIOLATION"
    _say(f"{size}: {verdict}, {states:,} states in {seconds:.1f} s ({states / seconds:,.0f} per second)")
    return 0 if safe is (dropped is None) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m specs", description="Search the model of the log protocol.")
    parser.add_argument("--size", type=Size, choices=list(Size), default=Size.SMALL)
    parser.add_argument("--without", type=Rule, choices=list(Rule), metavar="RULE", help=", ".join(Rule))
    parser.add_argument("--only", default="", metavar="SCENARIO", help="one scenario instead of all")
    return parser.parse_args()


def _run(chosen: Scenario, rules: frozenset[Rule]) -> Outcome:
    def progress(depth: int, states: int, seconds: float) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{chosen.name}: {depth} steps deep, {states:,} states, {seconds:.0f} s ")
            sys.stderr.flush()

    outcome = search(Model(chosen, rules), progress=progress)
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    rate = outcome.states / max(outcome.seconds, 1e-6)
    figures = f"{outcome.states:,} states, {outcome.depth} steps, {outcome.seconds:.1f} s, {rate:,.0f} per second"
    _say(f"{chosen.name:<10} {figures}: {outcome.violation or 'no violation'}")
    for number, step in enumerate(outcome.trace, 1):
        _say(f"  {number:>3}  {step}")
    return outcome


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
