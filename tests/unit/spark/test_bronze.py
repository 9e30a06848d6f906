"""Rows of `bronze/events` say what the events say, of every kind of event."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque.codec.log import Segment
from casque.spark.bronze import happened
from casque.spark.tables import TABLES
from casque.state.events import Added, Event, Remembered, Ringed, subject
from casque.types import JobSpec, from_ms

NAMES = [name for name in TABLES["bronze/events"].columns if name != "date"]
SAME = ("delayed", "token", "lease_ms", "worker", "error", "request_id", "verb")
TIMES = st.integers(0, 2**41)
SPECS = st.builds(
    JobSpec,
    id=st.text(max_size=5),
    entrypoint=st.text(max_size=5),
    payload=st.binary(max_size=9),
    priority=st.integers(-5, 5),
    run_at_ms=st.none() | TIMES,
    max_attempts=st.none() | st.integers(1, 9),
    key=st.none() | st.text(max_size=5),
    headers=st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=2),
    zone=st.none() | st.text(max_size=5),
    blob=st.none(),
)
ELSEWHERE = st.builds(JobSpec, st.text(max_size=5), st.just("send"), st.just(b""), blob=st.just("b"), blob_bytes=TIMES)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    JobSpec: SPECS | ELSEWHERE,
    bool: st.booleans(),
    int: TIMES,
    int | None: st.none() | TIMES,
    str: st.text(max_size=5),
    str | None: st.none() | st.text(max_size=5),
    bytes | None: st.none() | st.binary(max_size=5),
}


def events(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Fields of other types have no column."""
    fields = {one.name: FIELDS.get(one.type, st.none()) for one in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields | ({"priority": st.integers(-5, 5)} if "priority" in fields else {}))


EVENTS = st.one_of(*map(events, get_args(Event)))
COMMITS = st.lists(st.tuples(TIMES, st.lists(EVENTS, max_size=6)), max_size=4).map(
    lambda made: [
        Segment(1, "q", 7 + at, 2, f"w{at % 2}", at, "", at_ms, some) for at, (at_ms, some) in enumerate(made)
    ]
)


def row(commit: Segment, index: int, event: Event, payloads: bool) -> dict[str, Any]:
    told: dict[str, Any] = dict.fromkeys(NAMES)
    told |= {name: getattr(event, name, None) for name in SAME}
    told |= {
        "shard": 0,
        "position": commit.position,
        "index": index,
        "at": from_ms(commit.at),
        "kind": str(event.__struct_config__.tag),
        "job_id": subject(event),
        "due_at": None if (due_ms := getattr(event, "due_ms", None)) is None else from_ms(due_ms),
        "epoch": commit.epoch,
        "writer": commit.writer,
        "batch": commit.batch,
        "operations": sum(subject(one) is not None for one in commit.events),
    }
    if isinstance(event, Ringed):
        told["token"] = None
    if isinstance(event, Remembered):
        told["count"] = event.count
    if payloads:
        told["result"] = getattr(event, "result", None)
    if isinstance(event, Added):
        spec = event.spec
        told |= {name: getattr(spec, name) for name in ("entrypoint", "zone", "priority", "key")}
        told |= {
            "payload": spec.payload if payloads else None,
            "payload_bytes": spec.blob_bytes if spec.blob is not None else len(spec.payload),
            "headers": None if spec.headers is None else list(spec.headers.items()),
            "run_at": None if spec.run_at_ms is None else from_ms(spec.run_at_ms),
            "max_attempts": spec.attempts_max,
            "sequence": event.sequence,
        }
    return told


@pytest.mark.parametrize("payloads", [True, False])
@settings(deadline=None, database=None)
@given(COMMITS)
def test_rows_say_what_the_events_say(payloads: bool, commits: list[Segment]) -> None:
    assert happened(commits, payloads=payloads).to_pylist() == [
        row(commit, index, event, payloads) for commit in commits for index, event in enumerate(commit.events)
    ]
