"""One seed, one run, one report."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from simulation.world.invariants import Invariant
from simulation.world.layout import DOCUMENT, Layout, hurried
from simulation.world.onlooker import Effect
from simulation.world.profile import ROUGH, Profile
from simulation.world.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run was like. Plain values, so that it travels between processes."""

    seed: int
    profile: str
    digest: str
    """Of the whole trace: equal for equal runs."""
    simulated_s: float
    layout: str
    effects: dict[str, int]
    """What landed, by kind."""
    faults: dict[str, int]
    operations: dict[str, int]
    """By verb and outcome."""
    checked: dict[str, int]
    """How often each invariant was checked."""
    violated: Invariant | None = None
    detail: str = ""
    trace: list[str] = field(default_factory=list)
    """The end of the trace, if something was violated."""

    @property
    def commits(self) -> int:
        return self.effects.get(Effect.COMMIT, 0)

    @property
    def passed(self) -> bool:
        return self.violated is None


def simulate(
    seed: int, *, duration_s: float | None = None, profile: Profile = ROUGH, layout: Layout = DOCUMENT
) -> Report:
    """Run the world of this seed: faults for a while, then peace until everything is done.

    >>> simulate(1, duration_s=2).digest == simulate(1, duration_s=2).digest
    True
    """
    # Short-lived worlds in great number: looking for cycles all the time would cost a third of the run.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with hurried(layout):
            world = World(seed, profile, layout)
            world.run(layout.duration_s if duration_s is None else duration_s)
    finally:
        if collecting:
            gc.enable()
    violation = world.violation
    return Report(
        seed=seed,
        profile=profile.name,
        digest=world.trace.digest,
        simulated_s=world.loop.time(),
        layout=layout.name,
        effects={effect.value: count for effect, count in sorted(world.effects.items())},
        faults={fault.value: count for fault, count in sorted(world.faults.items())},
        operations={f"{verb} {told}": count for (verb, told), count in sorted(world.answers.counted.items())},
        checked={invariant.value: count for invariant, count in sorted(world.history.checked.items())},
        violated=None if violation is None else violation.invariant,
        detail="" if violation is None else violation.detail,
        trace=[] if violation is None else world.trace.last(),
    )
