"""A queue that is converted from a log to a document and back while it is in use, and those who do that."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from casque.clock import Random
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.head import KEY, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import decode_head
from casque.codec.snapshot import decode_snapshot
from casque.environment import Environment
from casque.errors import CasqueError, CorruptQueueError, UnsafeStoreError
from casque.journal.convert import Converter
from casque.state import State
from casque.storage.port import Stored
from simulation.world.history import History
from simulation.world.invariants import Invariant
from simulation.world.onlooker import DocumentOnlooker, Effect, LogOnlooker
from simulation.world.shelves import Shelves

if TYPE_CHECKING:
    from simulation.world.crew import Crew
    from simulation.world.life import Life

OF_A_LOG = ("log/", "snapshots/")


class ConvertedOnlooker:
    """Watches whichever of the two it is."""

    def __init__(self, recover: Callable[[Mapping[str, Stored]], State], history: History) -> None:
        self._h = history
        self._recover = recover
        self._now: DocumentOnlooker | LogOnlooker = LogOnlooker(history)
        self._queue: tuple[str, str | None] | None = None
        self._fences: set[int] = set()
        """Of all logs that there have been."""

    @property
    def shelves(self) -> Shelves:
        return self._now.shelves

    def landed(self, objects: Mapping[str, Stored], key: str) -> Effect:
        if key == KEY and self._switched(objects):
            return Effect.CONVERTED
        if isinstance(self._now, DocumentOnlooker) and key.startswith(OF_A_LOG):
            return Effect.BESIDE
        return self._now.landed(objects, key)

    def _switched(self, objects: Mapping[str, Stored]) -> bool:
        head = read_layout(KEY, objects[KEY].body)
        before, self._queue = self._queue, (head.layout, head.queue_id)
        if before == self._queue:
            return False
        self._h.layouts.append((self._h.now(), head.layout))
        if before is None:
            return False
        self._h.demand(
            before[0] != head.layout and before[1] != head.queue_id,
            Invariant.CONVERTED,
            lambda: f"the queue {before} became {self._queue}",
        )
        if isinstance(self._now, LogOnlooker):
            self._fences.update(self._now.fences)
            self._now = DocumentOnlooker(self._h, shelves=self._now.shelves)
        else:
            self._now = self._log(objects)
        return True

    def _log(self, objects: Mapping[str, Stored]) -> LogOnlooker:
        head = decode_head(KEY, objects[KEY].body)
        assert head.snapshot is not None
        assert head.queue_id is not None
        state = self._recover(objects)
        _, tip = decode_snapshot(
            head.snapshot,
            objects[head.snapshot.key].body,
            queue_id=head.queue_id,
            limits=state.limits,
            read=lambda key: objects[key].body,
        )
        self._h.demand(
            self._fences <= set(tip.fences),
            Invariant.KEPT,
            lambda: f"the new log knows the fences {tip.fences}, and there have been {sorted(self._fences)}",
        )
        return LogOnlooker.begun(self._h, self._now.shelves, head, state, tip)

    def deleted(self, key: str) -> None:
        if isinstance(self._now, LogOnlooker) or not key.startswith(OF_A_LOG):
            self._now.deleted(key)
            return
        fence = key.startswith("log/") and int(key.removeprefix("log/")) in self._fences
        self._h.demand(not fence, Invariant.KEPT, lambda: f"{key} was deleted, which is a fence")

    def recovered(self, objects: Mapping[str, Stored], state: State) -> None:
        self._now.recovered(objects, state)

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:
        return self._now.archive_is_complete(objects)


class Converters:
    """`casque convert`, in the middle of the day. Whoever has the queue open is told, and opens it again."""

    def __init__(self, life: Life, crew: Crew) -> None:
        self._life = life
        self._crew = crew
        self._rng = Random(f"{life.world.seed}/{life.name}/converters")

    def roles(self) -> list[Coroutine[Any, Any, None]]:
        return [self._convert()]

    async def _convert(self) -> None:
        life, world = self._life, self._life.world
        layout = DOCUMENT
        while await self._crew.pause(0.1):
            if KEY not in world.bucket.objects:
                continue
            asked_at = world.loop.time()
            converter = Converter(
                life.line, Environment(world.profile.settings, life.clock, self._rng), say=lambda _: None
            )
            try:
                converted = await converter.convert(layout)
            except CasqueError as met:
                error = met
                world.trace.note(life.name, f"convert to {layout} -> {type(error).__name__}")
                with world.watching():
                    world.history.demand(
                        not isinstance(error, (CorruptQueueError, UnsafeStoreError)),
                        Invariant.CONVERTED,
                        lambda: f"{life.name} converts a sound queue, and met {error!r}",  # noqa: B023
                    )
                continue
            world.trace.note(life.name, f"convert to {layout} -> {converted}")
            with world.watching():
                self._check(layout, asked_at, changed=converted.changed)
            # Mostly there and back, and sometimes to what it is.
            layout = LOG if (layout == DOCUMENT) == (self._rng.random() < 0.8) else DOCUMENT

    def _check(self, layout: str, asked_at: float, *, changed: bool) -> None:
        """It had this layout at some moment since, and was switched to it if the answer says so."""
        h = self._life.world.history
        since = [one for at, one in h.layouts if at >= asked_at]
        before = [one for at, one in h.layouts if at < asked_at][-1:]
        h.demand(
            layout in (since if changed else [*before, *since]),
            Invariant.CONVERTED,
            lambda: f"{self._life.name} converted to {layout}, and the queue was {before}, then {since}",
        )
