"""Settings: every one by name, and none that would be misunderstood."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from casque import BrokerQueue, DirectQueue, InMemoryStorage, InvalidInputError, Queue, QueueSettings
from casque.settings import SettingsChanges, milliseconds

NAMES = [field.name for field in fields(QueueSettings)]
SPANS = [name for name in NAMES if get_type_hints(QueueSettings)[name] is timedelta]
FLAGS = [name for name in NAMES if get_type_hints(QueueSettings)[name] is bool]
MAYBE_SPANS = ["archive_retention"]
CHOICES = ["archive_format"]
NUMBERS = [name for name in NAMES if name not in SPANS + FLAGS + MAYBE_SPANS + CHOICES]


def settings(**changes: Any) -> QueueSettings:
    return QueueSettings(**changes)


def test_the_keyword_arguments_are_exactly_the_settings() -> None:
    assert get_type_hints(SettingsChanges) == get_type_hints(QueueSettings)
    assert SettingsChanges.__required_keys__ == frozenset()


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert QueueSettings().stale_timeout == timedelta(minutes=5)
    assert QueueSettings().lease_ms == 300_000
    assert QueueSettings().max_attempts is None
    assert QueueSettings().conflict_retries == 20


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        QueueSettings().batch_max = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name in SPANS + MAYBE_SPANS if name != "commit_interval"])
@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-1)])
def test_a_time_that_is_not_positive_is_refused_by_name(name: str, value: timedelta) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_too_small_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: -1})


def test_no_retries_at_all_may_be_asked_for() -> None:
    assert settings(conflict_retries=0).conflict_retries == 0


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "conflict_retries"])
def test_zero_is_refused_where_one_is_the_least(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: 0})


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("value", [30, None])
def test_a_time_that_is_no_timedelta_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("name", MAYBE_SPANS)
def test_a_time_that_may_be_left_out_is_none_or_a_timedelta(name: str) -> None:
    assert getattr(settings(**{name: None}), name) is None
    assert getattr(settings(**{name: timedelta(days=90)}), name) == timedelta(days=90)
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: 90})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_that_is_neither_true_nor_false_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, 1.5, "3"])
def test_a_number_that_is_no_whole_one_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize(
    "open_queue",
    [
        lambda **changes: Queue.open("memory://", **changes),
        lambda **changes: BrokerQueue(InMemoryStorage(), **changes),
        lambda **changes: DirectQueue(InMemoryStorage(), **changes),
    ],
    ids=["Queue", "BrokerQueue", "DirectQueue"],
)
class TestEveryQueue:
    def test_takes_every_setting_by_name(self, open_queue: Any) -> None:
        for name in SPANS + MAYBE_SPANS:
            open_queue(**{name: timedelta(seconds=2)})
        for name in FLAGS:
            open_queue(**{name: False})
        for name in NUMBERS:
            open_queue(**{name: 2})

    def test_refuses_an_unknown_setting_and_names_the_nearest(self, open_queue: Any) -> None:
        with pytest.raises(InvalidInputError, match="'stale_timout'; did you mean 'stale_timeout'"):
            open_queue(stale_timout=timedelta(seconds=2))

    def test_refuses_what_is_like_no_setting_and_names_them_all(self, open_queue: Any) -> None:
        with pytest.raises(InvalidInputError, match="there is no setting 'xyzzy'") as caught:
            open_queue(xyzzy=1)

        for name in NAMES:
            assert name in str(caught.value)


def test_changes_leave_the_original_alone() -> None:
    original = QueueSettings()

    changed = original.with_changes({"batch_max": 7})

    assert (original.batch_max, changed.batch_max) == (2_000, 7)
    assert changed.stale_timeout == original.stale_timeout


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1999), 1),
        (timedelta(milliseconds=2), 2),
        (timedelta(minutes=5), 300_000),
        (timedelta(days=365_000), 365_000 * 86_400_000),
    ],
)
def test_anything_longer_than_nothing_is_at_least_a_millisecond(span: timedelta, expected: int) -> None:
    assert milliseconds(span) == expected


@pytest.mark.parametrize("value", ["csv", "", None, True, 1])
def test_a_form_of_the_archive_that_there_is_not_is_refused_with_those_that_there_are(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="archive_format must be jsonl, parquet or both"):
        settings(archive_format=value)
