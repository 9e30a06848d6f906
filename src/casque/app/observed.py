"""Parts of a broker that metrics look into: a store whose requests are counted, and committers that are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from casque.client.opening import Parts
from casque.codec.log import LAYOUT as LOG
from casque.codec.ring import shard_prefix
from casque.engine.committer import Committer
from casque.settings import QueueSettings
from casque.storage.adapted import SingleObjectStore
from casque.storage.metered import MeteredStore
from casque.storage.port import Store
from casque.storage.prefixed import PrefixedStore
from casque.telemetry.metrics import Metrics


def metered(store: Store, metrics: Metrics) -> Store:
    """The store, with its requests counted. A store of one object stays as it is: a queue on it is recognised by it."""
    return store if isinstance(store, SingleObjectStore) else MeteredStore(store, metrics)


class ObservedParts(Parts):
    """Parts that know the committers that were made from them, and from the parts of their shards."""

    def __init__(
        self, store: Store, settings: QueueSettings, *, committers: WeakSet[Committer] | None = None, **more: Any
    ) -> None:
        super().__init__(store, settings, **more)
        self._committers: WeakSet[Committer] = WeakSet() if committers is None else committers

    def committers(self) -> Iterable[Committer]:
        """Those that are in use; which of them lead, they know themselves."""
        return list(self._committers)

    def committer(self) -> Committer:
        made = super().committer()
        self._committers.add(made)
        return made

    def shard(self, token: int) -> Parts:
        below = PrefixedStore(self.store, shard_prefix(token))
        return ObservedParts(
            below,
            self.settings,
            committers=self._committers,
            layout=LOG,
            clock=self.clock,
            rng=self.rng,
            budget=self.budget,
        )
