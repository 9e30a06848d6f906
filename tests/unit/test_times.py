"""Times and spans as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from casque import InvalidInputError, times

NOW = datetime(2026, 2, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1.5m", 90), (" 2H ", 7200), ("1d", 86_400), ("1w", 604_800), ("0s", 0)],
)
def test_a_span_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert times.span("--delay", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "5x", "-5s", "s", "1e3s", "nan", "1 s", "\u0665s", "9" * 20 + "w", "9" * 400 + "d"]
)
def test_what_is_no_span_is_refused_with_the_argument_and_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--delay takes a span such as 500ms, 30s"):
        times.span("--delay", text)


def test_a_moment_is_in_utc_unless_it_names_its_zone() -> None:
    assert times.moment("--at", "2026-02-15T12:00") == NOW
    assert times.moment("--at", "2026-02-15 13:00+01:00") == NOW
    assert times.moment("--at", "2026-02-15") == NOW.replace(hour=0)
    with pytest.raises(InvalidInputError, match="--at takes a time in UTC"):
        times.moment("--at", "2026-02-30")


def test_a_moment_may_be_told_as_how_long_ago() -> None:
    assert times.moment_or_ago("--since", "90m", NOW) == NOW - timedelta(minutes=90)
    assert times.moment_or_ago("--since", "2026-02-15T12:00", NOW) == NOW
    for wrong in ("yesterday", "999999w", "9" * 20 + "w"):
        with pytest.raises(InvalidInputError, match="or how long ago: 90m"):
            times.moment_or_ago("--since", wrong, NOW)
