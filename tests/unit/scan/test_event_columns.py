"""Commits as columns."""

from __future__ import annotations

from casque.codec.log import Segment
from casque.scan.event_columns import EventColumns
from casque.state.events import Acked, Watched


def test_a_watched_event_names_its_job_and_none_if_it_is_about_a_zone() -> None:
    events = EventColumns(["kind", "job_id", "token"])
    events.add(
        Segment(1, "q", 7, 1, "w", 1, "", 0, [Watched("a", 3, 0, 5), Acked("b", 4), Watched("acme", 5, 0, 5, True)])
    )
    assert events.batch().to_pylist() == [
        {"kind": "watched", "job_id": "a", "token": 3},
        {"kind": "acked", "job_id": "b", "token": 4},
        {"kind": "watched", "job_id": None, "token": 5},
    ]
