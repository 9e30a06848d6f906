"""A world in which a queue's real code runs, and in which one seed decides everything that happens.

Time is virtual, the store is a dictionary, and chance comes from the seed: how long requests take, which of them are
lost, doubled or carried out late, what the nodes' clocks say, when a node stops, is cut off, dies and comes back. The
code under test is the real client, engine, journal, codec and state machine; nothing of it is replaced.

After every write that lands, a fresh reader decodes what is stored, and the step from the version before is held
against what callers asked for and what they were told. The same seed gives the same run, to the last byte of its trace.
"""

from __future__ import annotations

from simulation.world.invariants import Invariant, Violation
from simulation.world.profile import BRUTAL, CALM, PROFILES, ROUGH, Profile
from simulation.world.run import Report, simulate

__all__ = ["BRUTAL", "CALM", "PROFILES", "ROUGH", "Invariant", "Profile", "Report", "Violation", "simulate"]
