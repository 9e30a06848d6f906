"""Remembered requests in shares: one caller's flood leaves the others' alone, live, restored and replayed alike."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casque import Queue
from casque.clock import Random
from casque.service.requests import Enqueue
from casque.state import Limits, State
from casque.state.request_ids import scope_of, scoped_id
from casque.state.request_memory import RequestMemory
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.transport.border import Border
from casque.transport.scopes import Principal, Scope
from casque.types import JobSpec
from tests.simulation.tenant_mutations import one_tenants_requests_push_out_anothers

MOST, LEAST = 12, 2
LIMITS = Limits(requests_max=MOST, requests_min=LEAST)


def asked(state: State, number: int, request_id: str) -> None:
    state.execute(Enqueue((JobSpec(f"j{number}", "send", b""),), request_id), now_ms=1)


def test_a_flood_pushes_out_its_own_requests_and_no_others() -> None:
    state = State(LIMITS)
    for n, caller in enumerate(("globex", "initech", "globex")):
        asked(state, n, scoped_id(caller, f"order-{n}"))
    state.commit(writer="w", batch=1, at_ms=1)
    for n in range(100, 400):
        asked(state, n, scoped_id("acme", f"flood-{n}"))
        state.commit(writer="w", batch=n, at_ms=1)

    kept = Counter(map(scope_of, state.requests))
    assert kept == {"globex": 2, "initech": 1, "acme": MOST - 3}
    assert list(state.requests)[-1] == scoped_id("acme", "flood-399")


def test_the_old_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of all goes: then a flood takes everything."""
    one_tenants_requests_push_out_anothers(monkeypatch)
    state = State(LIMITS)
    for n, caller in enumerate(["globex", *["acme"] * MOST]):
        asked(state, n, scoped_id(caller, f"order-{n}"))
    state.commit(writer="w", batch=1, at_ms=1)
    assert set(map(scope_of, state.requests)) == {"acme"}


def test_without_callers_by_name_the_oldest_goes_as_before() -> None:
    state = State(LIMITS)
    for n in range(40):
        asked(state, n, f"r{n}")
        state.commit(writer="w", batch=n + 1, at_ms=1)
    assert list(state.requests) == [f"r{n}" for n in range(40 - MOST, 40)]


class Model:
    """The rule in words: while there are too many, the caller with the most loses its oldest."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def commit(self, new: list[str], forgets: str | None) -> None:
        self.kept += new
        if forgets in self.kept:
            old = self.kept.index(forgets) + 1
            self.kept = self.kept[min(old, max(len(self.kept) - LEAST, 0)) :]
        while len(self.kept) > MOST:
            counts = Counter(map(scope_of, self.kept))
            largest = min(counts, key=lambda scope: (-counts[scope], scope))
            self.kept.remove(next(one for one in self.kept if scope_of(one) == largest))


STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=6),  # who asks in this batch
        st.booleans(),  # whether it lands
        st.none() | st.integers(0, 40),  # which request its writer has seen for long
    ),
    max_size=30,
)


@given(STEPS)
def test_what_is_kept_is_a_matter_of_the_commits_alone(
    steps: list[tuple[list[str], bool, int | None]],
) -> None:
    live, replica, model, number = State(LIMITS), State(LIMITS), Model(), 0
    for batch, (callers, lands, old) in enumerate(steps, 1):
        new = []
        for caller in callers:
            number += 1
            new.append(scoped_id(caller, f"r{number}") if caller else f"r{number}")
            asked(live, number, new[-1])
        if not lands:
            live.rollback()
            assert list(live.requests) == model.kept
            continue
        forgets = None if old is None or old >= len(model.kept) else model.kept[old]
        after = list(live.requests_after(forgets))
        events = list(live.events)
        live.commit(writer="w", batch=batch, at_ms=1, forgets=forgets)
        replica.replay(events, writer="w", batch=batch, at_ms=1, forgets=forgets)
        model.commit(new, forgets)
        assert list(live.requests) == list(replica.requests) == after == model.kept
        # As a process finds it that restores a snapshot.
        replica.answers.restore(replica, list(replica.requests.items()))


def test_forgetting_does_not_take_longer_the_more_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted, not timed: each new request beyond the limit drops one, and looks at no other."""
    memory, looked = RequestMemory(), 0
    answer = State(LIMITS).requests.get("none")
    largest = RequestMemory._largest

    def counted(self: RequestMemory) -> str:
        nonlocal looked
        looked += len(self._most)
        found = largest(self)
        looked -= len(self._most)
        return found

    monkeypatch.setattr(RequestMemory, "_largest", counted)
    for n in range(20_000):
        memory.add(scoped_id(f"caller-{n % 50}", str(n)), answer)  # type: ignore[arg-type]
        memory.trim(None, least=LEAST, most=5_000)
    assert len(memory.answers) == 5_000
    assert looked < 3 * 20_000


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_tenant_is_answered_again_after_another_has_flooded_the_queue(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.journal.log.replica.Limits", lambda **more: Limits(requests_max=50, **more))
    monkeypatch.setattr("casque.journal.document.REQUESTS_MAX", 50)
    store = MemoryStore()

    def opened() -> Queue[bytes]:
        return Queue.open(store, layout=layout, clock=ManualClock(), rng=Random(3), stale_timeout=timedelta(seconds=30))

    def tenant(queue: Queue[bytes], zone: str) -> Border:
        return Border(queue._service, Principal(zone, frozenset({Scope.ADMIN}), zones=frozenset({zone})))

    spec = JobSpec("1", "send", b"order", zone="globex")
    async with opened() as queue:
        [first] = await tenant(queue, "globex").enqueue([spec], request_id="order-17")
        for n in range(200):
            await tenant(queue, "acme").enqueue([JobSpec(str(n), "send", b"", zone="acme")], request_id=f"r{n}")
        assert len(await queue.jobs()) == 201
    async with opened() as queue:
        [again] = await tenant(queue, "globex").enqueue(
            [JobSpec("2", "send", b"order", zone="globex")], request_id="order-17"
        )
        assert again.id == first.id
        assert len(await queue.jobs()) == 201
