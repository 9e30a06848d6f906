"""Who led when, and whether anybody was deposed who had shown that it lives."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from casque.codec.head import KEY, Owner
from simulation.world.broker import LEASE_S
from simulation.world.history import History
from simulation.world.invariants import Invariant
from simulation.world.layout import Layout

DRIFT = 0.8
"""The impatient one's clock may be so much faster than time."""
ON_THE_WAY_S = 6.0
"""Between the last look and the claim there is a request or two, which may be slow."""


class Reigns:
    """Everything that lands in the log or the head is a sign of life."""

    def __init__(self, history: History, layout: Layout) -> None:
        self._history = history
        self._layout = layout
        self._epoch = 0
        self._owner: Owner | None = None
        self._signs: deque[float] = deque()

    def landed(self, key: str, body: bytes, now: float) -> None:
        if key == KEY:
            epoch, owner = self._layout.leader(body)
            if epoch > self._epoch:
                if owner is not None and self._owner is not None and owner.id != self._owner.id:
                    self._check_silence(self._owner, owner, now)
                self._epoch, self._owner = epoch, owner
        if key == KEY or key.startswith("log/"):
            self._signs.append(now)
            while self._signs[0] < now - 2 * (LEASE_S + ON_THE_WAY_S):
                self._signs.popleft()

    def _check_silence(self, deposed: Owner, leader: Owner, now: float) -> None:
        """Somewhere before the takeover there was a lease without any sign."""
        begin = now - LEASE_S - ON_THE_WAY_S
        times = [begin, *(at for at in self._signs if at >= begin), now]
        silence_s = max(after - before for before, after in pairwise(times))
        self._history.demand(
            silence_s >= DRIFT * LEASE_S,
            Invariant.HEALTHY,
            lambda: f"{leader.address} deposed {deposed.address}, which was silent for {silence_s:.2f} s at the most",
        )
