"""When a schedule is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque import cron
from casque.errors import InvalidInputError


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def due(expression: str, since: str, count: int, tz: str = "UTC") -> list[str]:
    """The next moments, as the clocks of the zone show them."""
    at, found = ms(since), []
    parsed = cron.parse(expression, tz)
    for _ in range(count):
        at = parsed.next_after(at)
        found.append(datetime.fromtimestamp(at / 1000, parsed._zone).isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["2026-02-15T10:20", "2026-02-15T10:40", "2026-02-15T11:00"]),
        ("7,37 9-10 * * *", ["2026-02-15T10:07", "2026-02-15T10:37", "2026-02-16T09:07"]),
        ("0 0 1 * *", ["2026-03-01T00:00", "2026-04-01T00:00", "2026-05-01T00:00"]),
        ("0 0 * * mon", ["2026-02-16T00:00", "2026-02-23T00:00", "2026-03-02T00:00"]),
        ("0 0 * * 7", ["2026-02-22T00:00", "2026-03-01T00:00", "2026-03-08T00:00"]),
        ("0 0 * * 5-7", ["2026-02-20T00:00", "2026-02-21T00:00", "2026-02-22T00:00"]),
        ("0 0 29 feb *", ["2028-02-29T00:00", "2032-02-29T00:00", "2036-02-29T00:00"]),
        ("0 12 13 * fri", ["2026-02-20T12:00", "2026-02-27T12:00", "2026-03-06T12:00"]),
        ("10-30/10 22 * * *", ["2026-02-15T22:10", "2026-02-15T22:20", "2026-02-15T22:30"]),
        ("0 */8 * * *", ["2026-02-15T16:00", "2026-02-16T00:00", "2026-02-16T08:00"]),
        ("@hourly", ["2026-02-15T11:00", "2026-02-15T12:00", "2026-02-15T13:00"]),
        ("@weekly", ["2026-02-22T00:00", "2026-03-01T00:00", "2026-03-08T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00", "2029-01-01T00:00"]),
    ],
)
def test_the_moments_of_an_expression(expression: str, expected: list[str]) -> None:
    assert due(expression, "2026-02-15T10:00+00:00", 3) == [f"{one}+00:00" for one in expected]


def test_a_friday_the_thirteenth_or_either_of_them() -> None:
    found = due("0 0 13 * fri", "2026-03-01T00:00+00:00", 6)
    assert [one[5:10] for one in found] == ["03-06", "03-13", "03-20", "03-27", "04-03", "04-10"]
    assert [one[5:10] for one in due("0 0 13 4 fri", "2026-03-01T00:00+00:00", 3)] == ["04-03", "04-10", "04-13"]


def test_a_time_that_the_clock_jumps_over_comes_at_the_jump() -> None:
    # In Berlin the clock goes from 02:00 to 03:00 on 29 March 2026.
    found = due("30 2 * * *", "2026-03-28T00:00+00:00", 3, "Europe/Berlin")
    assert found == ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    both = due("0,30 2,3 * * *", "2026-03-28T22:00+00:00", 3, "Europe/Berlin")
    assert both == ["2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00", "2026-03-30T02:00+02:00"]


def test_of_a_repeated_hour_the_first_counts() -> None:
    # In Berlin the clock goes from 03:00 back to 02:00 on 25 October 2026.
    found = due("30 2 * * *", "2026-10-24T12:00+00:00", 2, "Europe/Berlin")
    assert found == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    from_the_second = due("30 2 * * *", "2026-10-25T01:10+00:00", 1, "Europe/Berlin")
    assert from_the_second == ["2026-10-26T02:30+01:00"]


def test_what_runs_every_hour_goes_by_the_time_that_passes() -> None:
    spring = due("*/30 * * * *", "2026-03-29T00:20+00:00", 3, "Europe/Berlin")
    assert spring == ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"]
    autumn = due("*/30 * * * *", "2026-10-25T00:20+00:00", 4, "Europe/Berlin")
    assert autumn == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
    ]


def test_a_clock_that_changes_by_half_an_hour_and_a_day_that_never_was() -> None:
    # Lord Howe Island: 02:00 to 02:30 on 4 October 2026. Samoa had no 30 December 2011.
    assert due("15 2 * * *", "2026-10-03T00:00+00:00", 1, "Australia/Lord_Howe") == ["2026-10-04T02:30+11:00"]
    assert due("0 12 30 12 *", "2011-12-29T00:00+00:00", 1, "Pacific/Apia") == ["2011-12-31T00:00+14:00"]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("* * * *", "has 4 fields and not 5"),
        ("0 * * * * *", "has 6 fields and not 5"),
        ("", "has 0 fields"),
        ("60 * * * *", "the minute cannot be '60'; it takes 0 to 59"),
        ("* 24 * * *", "the hour cannot be '24'"),
        ("* * 0 * *", "the day of the month cannot be '0'; it takes 1 to 31"),
        ("* * * juni *", "the month cannot be 'juni'; it takes 1 to 12, or jan, feb"),
        ("* * * * 8", "the day of the week cannot be '8'"),
        ("* * * * fri-mon", "ranges that rise"),
        ("*/0 * * * *", "steps from 1"),
        ("*/x * * * *", "steps from 1"),
        ("5/10 * * * *", "the minute cannot be '5/10'; it takes a number, a range"),
        ("0 0 L * *", "the day of the month cannot be 'l'"),
        ("1,,2 * * * *", "the minute cannot be ''"),
        ("0 0 30 2 *", "never due"),
        ("@reboot", "there are @yearly"),
        ("²  * * * *", "the minute cannot be '²'"),
    ],
)
def test_what_is_no_expression_is_refused_and_the_fix_named(expression: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        cron.parse(expression)
    assert says in str(refused.value)


@pytest.mark.parametrize("tz", ["Europe/Bern1", "", "../etc/passwd", "UTC\0", "/etc/localtime", 5])
def test_a_zone_that_nobody_knows_is_refused(tz: str) -> None:
    with pytest.raises(InvalidInputError, match="time zone"):
        cron.parse("* * * * *", tz)


EXPRESSIONS = ("*/7 * * * *", "0 * * * *", "30 2 * * *", "0,20 1-3 * * *", "15 */2 * * 0", "0 0 1 * mon", "4 4 29 2 *")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca")
MOMENTS = st.integers(ms("2020-01-01T00:00+00:00") // 1000, ms("2030-01-01T00:00+00:00") // 1000)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), MOMENTS, st.integers(1, 200_000))
def test_the_next_moment_does_not_depend_on_where_one_asks_from(expression: str, tz: str, at: int, later: int) -> None:
    """Whoever asks anywhere before a moment is told that moment, unless there is an earlier one."""
    parsed = cron.parse(expression, tz)
    first = parsed.next_after(at * 1000)
    assert first > at * 1000
    assert first % 60_000 == 0
    between = min(at * 1000 + later, first - 1)
    assert parsed.next_after(between) == first
    shown = datetime.fromtimestamp(first / 1000, UTC).astimezone(parsed._zone)
    fields = (shown.minute in parsed._minutes, shown.hour in parsed._hours)
    changed = (shown - timedelta(minutes=1)).utcoffset() != shown.utcoffset() or shown.fold
    jumped = datetime.fromtimestamp(first / 1000 - 1, UTC).astimezone(parsed._zone).utcoffset() != shown.utcoffset()
    assert all(fields) or jumped or changed


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), MOMENTS, st.integers(0, 40 * 24 * 3600))
def test_the_latest_of_many_is_found_without_counting_them(expression: str, tz: str, at: int, span: int) -> None:
    parsed = cron.parse(expression, tz)
    first = parsed.next_after(at * 1000)
    until = first + span * 1000
    latest = parsed.latest(first, until)
    assert first <= latest <= until < parsed.next_after(latest)
