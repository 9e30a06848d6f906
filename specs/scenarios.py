"""Who takes part in a search, how far it goes at each size, and in which scenario each rule shows what it is for."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from specs.log_model import Role, Rule, Scenario


class Size(StrEnum):
    """Seconds, a few minutes, a long break."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


W1, W2, W3 = ("W1", Role.WRITER), ("W2", Role.WRITER), ("W3", Role.WRITER)
A, B, C = ("A", Role.LEADER), ("B", Role.BROKER), ("C", Role.BROKER)
F = ("F", Role.FOLLOWER)
E, N, M = ("E", Role.HOLDER), ("N", Role.NEWCOMER), ("M", Role.NEWCOMER)
GONE, S = ("E", Role.GONE), ("S", Role.SOLE)

# Each scenario at the smallest size at which the rules it stands for can be seen to matter.
OPEN = Scenario(name="open", processes=(W1, W2), slots=4, ops=4, orphans=1)
RETRIED = Scenario(name="retried", processes=(W1, W2), slots=3, ops=2, again=1, copies=1)
FOLLOWED = Scenario(name="followed", processes=(W1, F), slots=3, ops=3, orphans=1)
LED = Scenario(name="led", processes=(A, B), slots=5, ops=3, epochs=2)
DEPOSED = Scenario(name="deposed", processes=(A, B, C), slots=4, ops=2)
MIXED = Scenario(name="mixed", processes=(W1, B, C), slots=4, ops=3, epochs=2, failures=False, snapshotters="BC")
EXCLUSIVE = Scenario(name="exclusive", processes=(E, ("N", Role.WRITER)), slots=4, ops=3, epochs=2, snapshotters="N")
NEWCOMERS = Scenario(name="newcomers", processes=(E, N, M), slots=3, ops=3, epochs=2, failures=False, snapshotters="N")
FORGOTTEN = Scenario(
    name="forgotten", processes=(W1, W2), slots=5, ops=4, remembered=1, orphans=1, failures=False, snapshotters="W2"
)
OUSTED = replace(EXCLUSIVE, name="ousted", remembered=1)
SEIZED = Scenario(name="seized", processes=(GONE, N, S), slots=4, ops=3, snapshotters="N")

SCENARIOS: dict[Size, tuple[Scenario, ...]] = {
    Size.SMALL: (OPEN, RETRIED, FOLLOWED, LED, DEPOSED, MIXED, EXCLUSIVE, NEWCOMERS, SEIZED, FORGOTTEN, OUSTED),
    Size.MEDIUM: (
        replace(OPEN, processes=(W1, W2, W3), copies=1),
        replace(RETRIED, slots=4, ops=3),
        replace(FOLLOWED, processes=(W1, W2, F), ops=3),
        replace(LED, processes=(A, B, F)),
        replace(DEPOSED, slots=5, ops=3, again=1),
        replace(MIXED, failures=True, snapshotters=""),
        replace(EXCLUSIVE, slots=5, copies=1, snapshotters=""),
        replace(NEWCOMERS, failures=True),
        replace(SEIZED, snapshotters=""),
        replace(FORGOTTEN, processes=(W1, W2, W3), failures=True, copies=1),
        replace(OUSTED, copies=1),
    ),
    Size.LARGE: (
        replace(OPEN, processes=(W1, W2, W3), slots=5, ops=5, snapshots=3),
        replace(RETRIED, processes=(W1, W2, W3), slots=4, ops=3),
        replace(FOLLOWED, processes=(W1, W2, F), slots=4, ops=4),
        replace(LED, processes=(A, B, F), copies=1),
        replace(DEPOSED, slots=5, ops=3, again=1, copies=1),
        replace(MIXED, processes=(W1, W2, B, C), failures=True),
        replace(EXCLUSIVE, processes=(("E", Role.SOLE), ("N", Role.WRITER)), slots=5, epochs=3, snapshotters=""),
        replace(NEWCOMERS, failures=True, snapshotters=""),
        replace(SEIZED, snapshotters="", slots=5),
        replace(FORGOTTEN, processes=(W1, W2, W3), remembered=2, failures=True, snapshotters=""),
        replace(OUSTED, processes=(("E", Role.SOLE), ("N", Role.WRITER)), slots=5, epochs=3, snapshotters=""),
    ),
}

# Dropping this rule is found out in this scenario.
FOUND_IN: dict[Rule, str] = {
    Rule.CLAIM_FIRST: "led",
    Rule.SAME_BYTES: "led",
    Rule.HEAD_AFTER_WIN: "open",
    Rule.FLOOR_FIRST: "open",
    Rule.KEEP_FENCES: "led",
    Rule.KEEP_HEAD: "led",
    Rule.HEAD_AFTER_TAIL: "followed",
    Rule.CHAIN: "open",
    Rule.RECHECK: "deposed",
    Rule.PUBLISH_OWN_EPOCH: "led",
    Rule.MEET_FENCE: "exclusive",
    Rule.REPORT_FORGOTTEN: "forgotten",
    Rule.FIRST_ATTEMPT: "forgotten",
    Rule.FLIP_FIRST: "seized",
    Rule.FENCE_AFTER_FLIP: "exclusive",
    Rule.EVERYONE_FENCES: "newcomers",
    Rule.OPEN_AFTER_LOSS: "exclusive",
}


def scenario(name: str, size: Size = Size.SMALL) -> Scenario:
    """One scenario by name."""
    return next(scenario for scenario in SCENARIOS[size] if scenario.name == name)
