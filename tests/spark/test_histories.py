"""The histories that tests read have something of everything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casque.scan import Scan, Table
from casque.state.events import Event
from casque.testing.clock import ManualClock
from tests.spark.histories import complete

pytestmark = pytest.mark.xdist_group("spark")


def test_a_complete_history_has_every_kind_of_event_that_exists(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    asyncio.run(complete(url, ManualClock()))
    with Scan(url) as scan:
        kinds = set(scan.table(list(scan.plan_events()), Table.EVENTS).column("kind").to_pylist())
    assert kinds == {event.__struct_config__.tag for event in Event.__args__}, "let histories.complete have it"
