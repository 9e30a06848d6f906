"""Ids drawn together are the ids that would have been drawn one by one."""

from __future__ import annotations

import pytest

from casque.client.ids import new_ids
from casque.clock import Random, new_id


@pytest.mark.parametrize("count", [0, 1, 19, 20, 333])
def test_ids_drawn_together_are_those_drawn_one_by_one(count: int) -> None:
    together, one_by_one = Random(count), Random(count)

    assert new_ids(together, count) == [new_id(one_by_one) for _ in range(count)]
    assert together.random() == one_by_one.random()
