"""How soon threads hand over to each other while Spark works, and afterwards."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyspark")

from casque.spark.work.turns import TURN_S, short_turns


def test_the_last_one_to_leave_puts_back_what_the_first_one_found() -> None:
    before = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_a_process_that_hands_over_even_sooner_keeps_that() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        sooner = sys.getswitchinterval()
        with short_turns():
            assert sys.getswitchinterval() == sooner
        assert sys.getswitchinterval() == sooner
    finally:
        sys.setswitchinterval(before)
