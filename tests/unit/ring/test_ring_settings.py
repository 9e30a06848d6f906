"""Gates and the rules of zones on a ring, while it is resized: the newest setting wins, in every shard."""

from __future__ import annotations

import pytest

from casque import Queue
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.ring.building import Builder
from casque.ring.root import Root
from casque.service.requests import CopyGate, CopyZone, SetGate, SetZone
from casque.state import AdoptRing, State
from casque.state.setting_marks import MARKS_MAX, SettingMarks
from casque.storage.memory import MemoryStore
from casque.types import Gate, ZoneRules

PAUSED = ZoneRules(paused=True)


async def a_ring(shards: int) -> MemoryStore:
    store = MemoryStore()
    assert await Parts(store, DEFAULTS).builder().create(shards)
    return store


def builder_of(store: MemoryStore) -> Builder:
    return Parts(store, DEFAULTS).builder()


async def gates(store: MemoryStore, shards: int) -> list[Gate]:
    parts = Parts(store, DEFAULTS)
    return [(await parts.shard(token).read()).gates.of("mail") for token in range(shards)]


def a_shard() -> State:
    state = State()
    state.execute(AdoptRing(1, 2, token=1), now_ms=1)
    return landed(state)


def landed(state: State) -> State:
    state.commit(writer="w", batch=state.position + 1, at_ms=1)
    return state


def test_a_gate_opened_and_paused_again_is_not_opened_by_a_copy_from_before() -> None:
    state = a_shard()
    state.execute(SetGate(Gate.PAUSED, "mail"), now_ms=1)
    seen = landed(state).position
    for gate in (Gate.OPEN, Gate.PAUSED):
        state.execute(SetGate(gate, "mail"), now_ms=1)
        landed(state)
    state.execute(CopyGate(Gate.OPEN, "mail", since=seen), now_ms=1)
    assert not state.events
    assert state.gates.of("mail") is Gate.PAUSED


def test_setting_what_a_shard_has_already_wins_over_a_copy_from_before() -> None:
    state = a_shard()
    state.execute(SetGate(Gate.PAUSED, "mail"), now_ms=1)
    state.execute(SetZone("acme", PAUSED), now_ms=1)
    seen = landed(state).position
    state.execute(SetGate(Gate.PAUSED, "mail"), now_ms=1)
    state.execute(SetZone("acme", PAUSED), now_ms=1)
    landed(state)
    state.execute(CopyGate(Gate.OPEN, "mail", since=seen), now_ms=1)
    state.execute(CopyZone("acme", ZoneRules(), since=seen), now_ms=1)
    assert state.gates.of("mail") is Gate.PAUSED
    assert state.rules["acme"] == PAUSED


def test_several_settings_are_copied_from_one_read() -> None:
    state = a_shard()
    seen = state.position
    for entrypoint in ("mail", "fax", None):
        state.execute(CopyGate(Gate.PAUSED, entrypoint, since=seen), now_ms=1)
        landed(state)
    state.execute(CopyZone("acme", PAUSED, since=seen), now_ms=1)
    assert {state.gates.of(one) for one in ("mail", "fax", None)} == {Gate.PAUSED}
    assert state.rules["acme"] == PAUSED


def test_a_copy_that_did_not_land_may_be_made_again() -> None:
    state = a_shard()
    seen = state.position
    state.execute(CopyGate(Gate.PAUSED, "mail", since=seen), now_ms=1)
    state.rollback()
    assert state.gates.of("mail") is Gate.OPEN
    state.replay([], writer="other", batch=1, at_ms=1)
    state.execute(CopyGate(Gate.PAUSED, "mail", since=seen), now_ms=1)
    assert state.gates.of("mail") is Gate.PAUSED


def test_a_restored_state_refuses_copies_from_before_it_began() -> None:
    state = a_shard()
    state.position = 0
    state.restore((), state.counters, position=40)
    state.execute(CopyGate(Gate.PAUSED, "mail", since=39), now_ms=1)
    assert state.gates.of("mail") is Gate.OPEN
    state.execute(CopyGate(Gate.PAUSED, "mail", since=40), now_ms=1)
    assert state.gates.of("mail") is Gate.PAUSED


def test_a_plain_queue_writes_nothing_for_what_is_set_already() -> None:
    state = State()
    state.execute(SetGate(Gate.OPEN, "mail"), now_ms=1)
    state.execute(SetZone("acme", ZoneRules()), now_ms=1)
    assert not state.events


def test_marks_that_are_forgotten_refuse_older_copies_only() -> None:
    marks: SettingMarks[str] = SettingMarks()
    for number in range(MARKS_MAX + 1):
        marks.written(f"z{number}", number + 1)
    marks.commit()
    assert marks.is_written_since("z0", MARKS_MAX, begins=0)
    assert not marks.is_written_since("z0", MARKS_MAX + 1, begins=0)


async def test_a_gate_set_while_a_resize_copies_stays_as_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await a_ring(2)
    builder = builder_of(store)
    read = builder._read
    async with Queue.open(store) as queue:
        await queue.pause("mail")
        assert queue._ring is not None
        first, shard = await queue._ring._shards.walked()
        reads = 0

        async def slow(token: int) -> State:
            """The first shard is read between two callers who open the gate and pause it again."""
            nonlocal reads
            reads += 1
            if reads == 2:
                await first.service.call(SetGate(Gate.OPEN, "mail"))
                state = await read(token)
                await shard.service.call(SetGate(Gate.OPEN, "mail"))
                await queue.pause("mail")
                return state
            return await read(token)

        monkeypatch.setattr(builder, "_read", slow)
        await builder.resize(2)
    assert await gates(store, 2) == [Gate.PAUSED, Gate.PAUSED]
    assert reads > 2


async def test_a_resize_that_ends_before_its_last_step_lets_no_job_past_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await a_ring(1)
    change = Root.change
    changes = 0

    async def interrupted(self: Root, changed: object) -> object:
        nonlocal changes
        changes += 1
        if changes == 2:
            raise KeyboardInterrupt
        return await change(self, changed)  # type: ignore[arg-type]

    monkeypatch.setattr(Root, "change", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await builder_of(store).resize(3)
    monkeypatch.undo()
    root = await Parts(store, DEFAULTS).root().read()
    assert (root.size, root.shards) == (1, 3)
    async with Queue.open(store) as queue:
        await queue.pause("mail")
        assert await gates(store, 3) == [Gate.PAUSED] * 3
    assert (await builder_of(store).resize(3)).size == 3
    assert await gates(store, 3) == [Gate.PAUSED] * 3


async def test_a_gate_set_while_shards_are_announced_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await a_ring(1)
    async with Queue.open(store) as queue:
        builder = builder_of(store)
        copy_settings = builder._copy_settings

        async def late(tokens: range) -> None:
            await copy_settings(tokens)
            await queue.pause("mail")

        monkeypatch.setattr(builder, "_copy_settings", late)
        await builder.resize(2)
    assert await gates(store, 2) == [Gate.PAUSED, Gate.PAUSED]
