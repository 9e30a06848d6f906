"""Budgets of requests: what is left decides how far apart commits are, and nothing is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from casque.errors import InvalidInputError
from casque.request_budget import RequestBudget, Usage
from casque.settings import QueueSettings
from casque.testing.clock import ManualClock


def a_budget(clock: ManualClock, **settings: Any) -> RequestBudget:
    return RequestBudget(QueueSettings(**settings), clock)


def test_without_limits_nothing_waits() -> None:
    budget = a_budget(ManualClock())
    budget.spend(1_000_000)
    assert not budget.limited
    assert (budget.commit_spacing_ms("w"), budget.poll_spacing_ms(), budget.usage()) == (0, 0, [])


def test_commits_are_at_once_until_half_of_it_is_used_and_polls_are_spaced_before() -> None:
    budget = a_budget(ManualClock(), requests_per_minute=60)
    budget.spend(30)
    assert budget.commit_spacing_ms("w") == 0
    assert budget.poll_spacing_ms() == 2_000
    budget.spend(1)
    assert budget.commit_spacing_ms("w") > 0


def test_the_less_is_left_the_farther_apart_they_are() -> None:
    budget = a_budget(ManualClock(), requests_per_minute=100)
    budget.spend(60)
    spacings = []
    while budget.usage()[0].used < 100:
        spacings.append(budget.commit_spacing_ms("w"))
        budget.spend(5)
    assert spacings == sorted(spacings)
    assert spacings[0] == 3_000


async def test_when_it_is_used_up_commits_wait_for_the_next_minute() -> None:
    clock = ManualClock()
    budget = a_budget(clock, requests_per_minute=10)
    budget.spend(12)
    await clock.advance(20)
    assert budget.poll_spacing_ms() == budget.commit_spacing_ms("w") == 40_000
    await clock.advance(40)
    assert budget.usage() == [Usage("minute", 10, 0)]
    assert budget.commit_spacing_ms("w") == 0


def test_a_used_up_day_never_holds_commits_up_for_longer_than_leases_allow() -> None:
    budget = a_budget(ManualClock(), requests_per_day=10, stale_timeout=timedelta(seconds=40))
    budget.spend(1_000)
    assert budget.commit_spacing_ms("w") == 10_000


def test_the_tighter_of_two_budgets_decides() -> None:
    budget = a_budget(ManualClock(), requests_per_minute=1_000, requests_per_day=1_000)
    budget.spend(600)
    day_alone = a_budget(ManualClock(), requests_per_day=1_000)
    day_alone.spend(600)
    assert budget.commit_spacing_ms("w") == day_alone.commit_spacing_ms("w") == 75_000


def test_writers_of_one_process_share_its_budget() -> None:
    budget = a_budget(ManualClock(), requests_per_minute=600)
    budget.spend(400)
    alone = budget.commit_spacing_ms("shard 1")
    budget.commit_spacing_ms("shard 2")
    assert budget.commit_spacing_ms("shard 1") == 2 * alone


@pytest.mark.parametrize("name", ["requests_per_minute", "requests_per_day"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_a_budget_is_a_whole_number_of_requests(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} must be a whole number from 1"):
        QueueSettings(**{name: value})
