"""A peek at zones of many entrypoints leaves others their turns, and finds what one look would."""

from __future__ import annotations

import pytest

from casque import Queue
from casque.clock import Random
from casque.engine import embedded
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.types import JobSpec, PeekedZone


async def peeked(
    at_once: int, monkeypatch: pytest.MonkeyPatch, looks: list[int] | None = None
) -> list[list[PeekedZone]]:
    monkeypatch.setattr(embedded, "PEEKED_AT_ONCE", at_once)
    clock = ManualClock()
    async with Queue.open(MemoryStore(), layout="log", clock=clock, rng=Random(1)) as queue:
        service = queue._service
        now_ms = clock.wall_ms()
        for n in range(40):
            await service.enqueue([JobSpec(str(n), f"e{n % 17}", b"", zone=f"z{n * 7 % 23}")])
            await clock.advance(0.01)
        await service.enqueue([JobSpec("later", "another", b"", zone="late", run_at_ms=now_ms + 60_000)])
        look = service._executor.look  # type: ignore[attr-defined]

        async def counted(question: object) -> object:
            if looks is not None:
                looks.append(1)
            return await look(question)

        monkeypatch.setattr(service._executor, "look", counted)  # type: ignore[attr-defined]
        return [
            await service.peek_zones(),
            await service.peek_zones(limit=5),
            await service.peek_zones(entrypoints=("e1", "e2", "e3", "another"), limit=9),
            await service.peek_zones(names=frozenset({"z1", "z7", "late"})),
        ]


async def test_some_at_a_time_is_as_good_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    whole = await peeked(1_000, monkeypatch)
    in_parts = await peeked(3, monkeypatch, looks)

    assert in_parts == whole
    assert [zone.zone for zone in whole[0]][-1] == "late"
    assert len(looks) > 4 * len(whole)
