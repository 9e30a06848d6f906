"""What others need to test with casque: the suites that every store and every service has to pass, stores that
misbehave, and ways to run jobs that are functions without a queue.

`StoreSuite` and `ServiceSuite` need pytest and pytest-asyncio; the rest does not, hence the late imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casque.testing.clock import ManualClock
    from casque.testing.functions import assert_enqueued, in_memory, inline
    from casque.testing.gated import GatedStore
    from casque.testing.hosting import FixedHost
    from casque.testing.lossy import LossyStore
    from casque.testing.service_suite import ServiceSuite
    from casque.testing.store_suite import StoreSuite

__all__ = [
    "FixedHost",
    "GatedStore",
    "LossyStore",
    "ManualClock",
    "ServiceSuite",
    "StoreSuite",
    "assert_enqueued",
    "in_memory",
    "inline",
]

_HOMES = {
    "FixedHost": "casque.testing.hosting",
    "GatedStore": "casque.testing.gated",
    "LossyStore": "casque.testing.lossy",
    "ManualClock": "casque.testing.clock",
    "ServiceSuite": "casque.testing.service_suite",
    "StoreSuite": "casque.testing.store_suite",
    "assert_enqueued": "casque.testing.functions",
    "in_memory": "casque.testing.functions",
    "inline": "casque.testing.functions",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
