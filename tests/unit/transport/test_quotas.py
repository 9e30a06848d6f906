"""Shares of a server, counted."""

from __future__ import annotations

import asyncio

import pytest

from casque.errors import LimitReachedError
from casque.testing.clock import ManualClock, settle
from casque.transport.quotas import Bytes, Connections, Places, Rate


def test_a_place_that_was_given_back_can_be_taken_again() -> None:
    places = Places("calls", "from one address", most=3, each=2)
    with places.taken("a"), places.taken("a"):
        with pytest.raises(LimitReachedError, match="calls from one address: the broker allows 2"), places.taken("a"):
            pass
        with (
            places.taken("b"),
            pytest.raises(LimitReachedError, match="calls of all callers: the broker allows 3"),
            places.taken("c"),
        ):
            pass
    with places.taken("a"):
        assert places.counts.total == 1
    assert places.counts.names() == 0


def test_calls_on_a_connection_that_is_counted_need_no_other() -> None:
    connections = Connections(each=1)
    with (
        connections.used("host", "1"),
        connections.used("host", "1"),
        connections.used("other", "1"),
        pytest.raises(LimitReachedError, match="connections from one address"),
        connections.used("host", "2"),
    ):
        pass
    with connections.used("host", "2"):
        pass
    assert not connections._calls


async def test_whoever_waits_for_room_goes_on_when_there_is_some_and_may_leave() -> None:
    quota = Bytes(most=100, each=10)
    quota.take("a", 10)
    waiting = [asyncio.create_task(quota.room_for_bytes("a")) for _ in range(2)]
    await settle()
    assert quota.has_room("b")
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert len(quota._waiting) == 1

    quota.give("a", 10)

    await waiting[1]
    assert not quota._waiting
    with quota.held("a", 0), quota.held("a", 0):  # requests may be empty
        pass
    assert quota.counts.names() == 0


def test_a_second_of_calls_may_be_had_at_once_and_then_as_they_come() -> None:
    clock = ManualClock()
    rate = Rate(10, clock)
    clock._monotonic_ms = 5_000.0
    assert rate.spend("a", 10) == 0.0
    assert rate.spend("a", 5) == pytest.approx(0.5)
    with pytest.raises(LimitReachedError, match="calls in a second"):
        rate.check("a")
    rate.check("b")
    clock._monotonic_ms = 5_600.0
    rate.check("a")
    assert Rate(None, clock).spend("a", 1_000_000) == 0.0
