"""Who should lead which shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casque.clock import Random, new_id
from casque.ring.shares import next_in_line, shares

NAMES = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=12)


def some(count: int, seed: int = 1) -> list[str]:
    rng = Random(seed)
    return [new_id(rng) for _ in range(count)]


@given(NAMES, st.integers(0, 70))
def test_every_shard_has_one_member_and_nobody_has_two_more_than_another(names: set[str], shards: int) -> None:
    led = shares(names, shards)

    has = Counter(dict.fromkeys(names, 0))
    has.update(led.values())
    assert list(led) == list(range(shards))
    assert max(has.values()) - min(has.values()) <= 1


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8), st.integers(1, 40))
def test_everybody_who_knows_the_same_members_decides_alike(names: list[str], shards: int) -> None:
    assert shares(names, shards) == shares(reversed(names), shards) == shares(set(names), shards)


def test_without_members_nobody_leads() -> None:
    assert shares([], 8) == {}


@pytest.mark.parametrize("shards", [8, 16, 64, 256])
@pytest.mark.parametrize("members", [1, 2, 3, 5, 10])
def test_few_shards_move_when_a_member_comes_or_goes(members: int, shards: int) -> None:
    moved, least = 0, 0
    for seed in range(20):
        names = some(members + 1, seed)
        before, after = shares(names[:-1], shards), shares(names, shards)
        moved += sum(before[shard] != after[shard] for shard in before)
        least += Counter(after.values())[names[-1]]

    # What the newcomer gets has to move. To keep the shares even, a few others do as well.
    assert moved <= 2 * least


def test_new_shards_move_few_of_the_old_ones() -> None:
    names = some(4)

    before, after = shares(names, 16), shares(names, 64)

    assert sum(before[shard] != after[shard] for shard in before) <= 8


def test_the_next_in_line_is_another_member() -> None:
    names = some(3)

    for shard, name in shares(names, 16).items():
        other = next_in_line(names, shard, after=name)
        assert other in names
        assert other != name
    assert next_in_line(names[:1], 0, after=names[0]) is None
