"""What travels as JSON comes back as it was, whatever fields jobs gain."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from casque.checks import MOMENTS_MS
from casque.transport.http.messages import Job, NewJob, from_job, from_spec, to_job
from casque.transport.http.verbs import Verbs
from casque.types import Attempt, Ending, JobRecord, JobSpec, JobState

names = st.text(min_size=1, max_size=8)
moments = st.integers(MOMENTS_MS[0], MOMENTS_MS[1])
spans = st.integers(0, 1000 * 365 * 24 * 3600 * 1000)
numbers = st.integers(0, 2**63 - 1)
specs = st.builds(
    JobSpec,
    id=names,
    entrypoint=names,
    payload=st.binary(max_size=50),
    priority=st.integers(-(2**63), 2**63 - 1),
    run_at_ms=st.none() | moments,
    max_attempts=st.none() | st.integers(1, 2**63 - 1),
    key=st.none() | names,
    headers=st.none() | st.dictionaries(names, names, max_size=3),
    zone=st.none() | names,
)
records = st.builds(
    JobRecord,
    spec=specs,
    sequence=numbers,
    created_ms=moments,
    state=st.sampled_from(JobState),
    due_ms=moments,
    token=numbers,
    attempts=numbers,
    worker=st.none() | names,
    lease_ms=spans,
    claimed_ms=st.none() | moments,
    beat_ms=st.none() | moments,
    error=st.none() | names,
    tries=st.lists(
        st.builds(
            Attempt,
            claimed_ms=st.none() | moments,
            ended_ms=moments,
            how=st.sampled_from(Ending),
            worker=st.none() | names,
            token=numbers,
            error=st.none() | names,
        ),
        max_size=2,
    ).map(tuple),
)


@given(records)
def test_a_record_survives_the_way(record: JobRecord) -> None:
    sent = msgspec.json.encode(to_job(record))

    assert from_job(msgspec.json.decode(sent, type=Job)) == record


@given(specs)
def test_a_spec_survives_the_way(spec: JobSpec) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(from_spec(spec)), type=NewJob)

    assert sent.id == spec.id
    assert (sent.payload, sent.max_attempts, sent.key) == (spec.payload, spec.max_attempts, spec.key)
    assert (sent.headers, sent.zone, sent.priority) == (spec.headers, spec.zone, spec.priority)


def test_no_field_of_a_job_is_forgotten() -> None:
    """Whoever adds a field to a job adds it here."""
    renamed = {"max_attempts": "max_attempts", "run_at_ms": "run_at", "created_ms": "created_at", "due_ms": "due_at"}
    renamed |= {"lease_ms": "lease", "claimed_ms": "claimed_at", "beat_ms": "heartbeat_at"}
    own = {"blob", "blob_bytes"}  # where the queue put a payload is nobody else's business
    asked = {renamed.get(field, field) for field in JobSpec.__struct_fields__ if field not in own}
    known = {renamed.get(field, field) for field in JobRecord.__struct_fields__ if field != "spec"}

    assert asked <= set(NewJob.__struct_fields__)
    assert asked | known == set(Job.__struct_fields__) - {"payload_json"}, "that is the payload in another form"
    assert set(Job.__struct_fields__) >= asked


def test_every_verb_is_a_route() -> None:
    from casque.transport.http.routes import ROUTES
    from casque.transport.http.simple_verbs import BY_VERB

    verbs = {name for name in vars(Verbs) if not name.startswith("_")}
    assert {route.verb for route in ROUTES} == (verbs - {"unclaim"}) | {"events", "archive"} | set(BY_VERB)
    assert not verbs & set(BY_VERB), "said in one place"
