"""How much a queue remembers beside its jobs, scaled down so that the few processes of a world reach the limits."""

from __future__ import annotations

from functools import partial

from casque.state import Limits

WRITERS_MAX = 4

scaled = partial(Limits, writers_max=WRITERS_MAX)
"""What the code under test calls in the place of `Limits`."""
LIMITS = scaled(finished=True)
