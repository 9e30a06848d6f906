"""How much a queue remembers beside its jobs, scaled down so that the few processes of a world reach the limits."""

from __future__ import annotations

from functools import partial

from casque.state import Limits

WRITERS_MAX = 4
REQUESTS_MAX = 8
REQUESTS_MIN = 2
DECLINES_MAX = 3
KEPT_MS = 4_000
"""For how long requests are remembered, by the clock of whoever commits."""
KEPT_S = 3.5
"""The same by any clock: none of them is faster by more than a tenth."""

scaled = partial(Limits, writers_max=WRITERS_MAX)
"""What the code under test calls in the place of `Limits`."""
forgetful = partial(scaled, requests_max=REQUESTS_MAX, requests_min=REQUESTS_MIN)
"""The same where only those requests have an id that somebody repeats: behind brokers, all of them have one."""
LIMITS = scaled(finished=True)
FORGETFUL = forgetful(finished=True)
