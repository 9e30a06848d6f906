"""Convert the queue's values to protobuf messages, and requests to the queue's values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from casque import checks
from casque.clock import Clock, Random, new_id
from casque.codec.archive import unarchived_try
from casque.errors import CasqueError, InvalidInputError
from casque.fields import GAINED, gained
from casque.service import ArchivedJob, Lease, Outcome, OutcomeKind, QueueEvent, Stats
from casque.transport.errors import code_of, grpc_code
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.settling import Refused, single_kind
from casque.types import (
    Attempt,
    Backoff,
    Ending,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    Missed,
    PeekedZone,
    Schedule,
    ScheduleSpec,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
    from_ms,
    ms_of,
    to_ms,
)

_STATES = {
    JobState.READY: pb.JOB_STATE_READY,
    JobState.DELAYED: pb.JOB_STATE_DELAYED,
    JobState.RUNNING: pb.JOB_STATE_RUNNING,
    JobState.DONE: pb.JOB_STATE_DONE,
    JobState.DEAD: pb.JOB_STATE_DEAD,
    JobState.CANCELLED: pb.JOB_STATE_CANCELLED,
}
_ENDINGS = {
    Ending.FAILED: pb.ENDING_FAILED,
    Ending.EXPIRED: pb.ENDING_EXPIRED,
    Ending.CRASHED: pb.ENDING_CRASHED,
}
_MISSED = {Missed.SKIP: pb.MISSED_SKIP, Missed.ONE: pb.MISSED_ONE, Missed.ALL: pb.MISSED_ALL}
_FROM_MISSED: dict[int, Missed] = {
    pb.MISSED_UNSPECIFIED: Missed.ONE,
    **{int(number): missed for missed, number in _MISSED.items()},
}
_GATES = {
    Gate.OPEN: pb.GATE_OPEN,
    Gate.PAUSED: pb.GATE_PAUSED,
    Gate.DRAINING: pb.GATE_DRAINING,
}
_FROM_GATES: dict[int, Gate] = {int(number): gate for gate, number in _GATES.items()}
_FROM_STATES: dict[int, JobState] = {int(number): state for state, number in _STATES.items()}

# --- Requests ---


def lease(message: pb.Lease) -> Lease:
    sent = given(message, "progress")
    progress = None if sent is None else checks.progress(sent.done, given(sent, "total"), given(sent, "note"))
    return Lease(message.job_id, given(message, "token"), progress)


def spec(new: pb.NewJob, *, max_attempts: int | None, clock: Clock, rng: Random) -> JobSpec:
    """`max_attempts` applies to jobs that do not set their own."""
    run_at_ms = given(new, "run_at_ms")
    if new.HasField("delay_ms"):
        if run_at_ms is not None:
            raise InvalidInputError("give either delay_ms or run_at_ms, not both")
        if new.delay_ms < 0:
            raise InvalidInputError(f"delay_ms must be a whole number from 0, not {new.delay_ms}")
        run_at_ms = clock.wall_ms() + new.delay_ms
    if new.HasField("max_attempts"):
        max_attempts = new.max_attempts or None
    return JobSpec(
        new.id or new_id(rng),
        new.entrypoint,
        new.payload,
        new.priority,
        run_at_ms,
        max_attempts,
        given(new, "key"),
        dict(new.headers) or None,
        given(new, "zone"),
        max_crashes=given(new, "max_crashes"),
        fifo=new.fifo,
        **_given_gained(new),
    )


def schedule_spec(asked: pb.Schedule, *, max_attempts: int | None, clock: Clock, rng: Random) -> ScheduleSpec:
    if asked.missed not in _FROM_MISSED:
        known = ", ".join(pb.Missed.Name(one) for one in _MISSED.values())
        raise InvalidInputError(f"missed must be one of {known}, not {asked.missed}")
    job = spec(asked.job, max_attempts=max_attempts, clock=clock, rng=rng)
    return ScheduleSpec(
        asked.name,
        asked.cron,
        msgspec.structs.replace(job, id=asked.job.id),
        asked.tz or "UTC",
        _FROM_MISSED[asked.missed],
        given(asked, "origin"),
    )


def _given_gained(message: Any) -> dict[str, Any]:
    sent = {descriptor.name: value for descriptor, value in message.ListFields()}
    return {
        field.name: tuple(sent[field.name]) if isinstance(field.default, tuple) else sent[field.name]
        for field in GAINED
        if field.name in sent
    }


def given(message: Any, field: str) -> Any:
    """An optional field; None if the caller did not set it."""
    return getattr(message, field) if message.HasField(field) else None


def states(numbers: Iterable[int]) -> frozenset[JobState] | None:
    """None means any state."""
    chosen: set[JobState] = set()
    for number in numbers:
        if number not in _FROM_STATES:
            known = ", ".join(pb.JobState.Name(one) for one in _STATES.values())
            raise InvalidInputError(f"states must be some of {known}, not {number}")
        chosen.add(_FROM_STATES[number])
    return frozenset(chosen) or None


def gate(number: int) -> Gate:
    if number not in _FROM_GATES:
        known = ", ".join(pb.Gate.Name(one) for one in _GATES.values())
        raise InvalidInputError(f"gate must be one of {known}, not {number}")
    return _FROM_GATES[number]


def zone_rules(message: pb.ZoneRules) -> ZoneRules:
    return ZoneRules(message.weight or 1.0, given(message, "running_max"), given(message, "per_second"), message.paused)


def state_numbers(chosen: frozenset[JobState] | None) -> list[pb.JobState]:
    return [] if chosen is None else [_STATES[state] for state in chosen]


def moment(message: Any, field: str) -> datetime | None:
    value = given(message, field)
    if value is None:
        return None
    try:
        return from_ms(value)
    except (OverflowError, ValueError) as error:
        raise InvalidInputError(f"{field} must be milliseconds since 1970 of a year up to 9999, not {value}") from error


def outcome(message: pb.Outcome, rng: Random) -> Outcome:
    return Outcome(
        message.job_id,
        message.token,
        given(message, "error"),
        given(message, "result"),
        given(message, "delay_ms"),
        backoff(message, rng),
        _how(message),
    )


def _how(message: pb.Outcome) -> OutcomeKind | None:
    flags = (
        (message.final, OutcomeKind.FINAL),
        (message.crashed, OutcomeKind.CRASHED),
        (message.snoozed, OutcomeKind.SNOOZED),
        (message.cancelled, OutcomeKind.CANCELLED),
        (message.declined, OutcomeKind.DECLINED),
    )
    return single_kind([kind for said, kind in flags if said])


def backoff(message: pb.NackRequest | pb.Outcome, rng: Random) -> Backoff | None:
    if not message.HasField("backoff"):
        return None
    asked = message.backoff
    if not 0 <= asked.base_ms <= asked.cap_ms:
        raise InvalidInputError("backoff must have 0 <= base_ms <= cap_ms")
    return Backoff(asked.base_ms, asked.cap_ms, rng.random())


# --- Answers ---


def job(record: JobRecord) -> pb.Job:
    found = outline(record)
    found.payload = record.spec.payload
    if record.tries:
        found.tries.extend(map(_attempt, record.tries))
    return found


def outline(record: JobRecord) -> pb.Job:
    """A job without its payload and attempts, for callers that have them already: an answer too large for its caller
    would be lost."""
    asked = record.spec
    return pb.Job(
        id=asked.id,
        entrypoint=asked.entrypoint,
        priority=asked.priority,
        state=_STATES[record.state],
        sequence=record.sequence,
        created_at_ms=record.created_ms,
        due_at_ms=record.due_ms,
        token=record.token,
        attempts=record.attempts,
        max_attempts=asked.max_attempts,
        worker=record.worker,
        lease_ms=record.lease_ms,
        claimed_at_ms=record.claimed_ms,
        beat_at_ms=record.beat_ms,
        error=record.error,
        run_at_ms=asked.run_at_ms,
        key=asked.key,
        headers=asked.headers,
        zone=asked.zone,
        crashes=record.crashes,
        max_crashes=asked.max_crashes,
        progress=None if record.progress is None else pb.Progress(**msgspec.structs.asdict(record.progress)),
        fifo=asked.fifo,
        declined=record.declined,
        **gained(asked),
    )


def beat(answer: JobRecord | CasqueError) -> pb.HeartbeatResponse.Answer:
    if isinstance(answer, JobRecord):
        return pb.HeartbeatResponse.Answer(job=outline(answer))
    error = pb.Error(name=type(answer).__name__, code=grpc_code(answer), message=str(answer))
    return pb.HeartbeatResponse.Answer(error=error)


def refused(found: Refused) -> pb.SettleResponse.Refused:
    return pb.SettleResponse.Refused(name=found.error, code=code_of(found.error), places=found.places)


def schedule(found: Schedule) -> pb.Schedule:
    asked = found.spec
    return pb.Schedule(
        name=asked.name,
        cron=asked.cron,
        tz=asked.tz,
        missed=_MISSED[asked.missed],
        job=pb.NewJob(
            entrypoint=asked.job.entrypoint,
            payload=asked.job.payload,
            priority=asked.job.priority,
            max_attempts=asked.job.max_attempts or 0,
            key=asked.job.key,
            headers=asked.job.headers,
            zone=asked.job.zone,
            max_crashes=asked.job.max_crashes,
            fifo=asked.job.fifo,
            **gained(asked.job),
        ),
        origin=asked.origin,
        paused=found.paused,
        next_at_ms=found.next_ms,
        last_at_ms=found.last_ms,
    )


def stats(found: Stats) -> pb.StatsResponse:
    gates = found.gates
    return pb.StatsResponse(
        position=found.position,
        **msgspec.structs.asdict(found.totals),
        gate=_GATES[gates.queue],
        gates={name: _GATES[gate] for name, gate in gates.entrypoints.items()},
    )


def zone(found: ZoneStanding) -> pb.ZonesResponse.Zone:
    return pb.ZonesResponse.Zone(
        zone=found.zone,
        ready=found.ready,
        delayed=found.delayed,
        running=found.running,
        dead=found.dead,
        next_at_ms=found.next_ms,
        fifo=found.fifo,
        rules=pb.ZoneRules(**msgspec.structs.asdict(found.rules)),
        lease=zone_lease(found.lease),
    )


def zone_lease(found: ZoneLease | None) -> pb.ZoneLease | None:
    if found is None:
        return None
    return pb.ZoneLease(
        zone=found.zone,
        token=found.token,
        lease_ms=found.lease_ms,
        worker=found.worker,
        leased_at_ms=found.leased_ms,
        beat_at_ms=found.beat_ms,
    )


def peeked_zone(found: PeekedZone) -> pb.PeekZonesResponse.Zone:
    return pb.PeekZonesResponse.Zone(zone=found.zone, next_at_ms=found.next_ms, due=found.due, fifo=found.fifo)


def event(found: QueueEvent) -> pb.Event:
    return pb.Event(
        position=found.position,
        index=found.index,
        at_ms=to_ms(found.at),
        kind=found.kind.value,
        job_id=found.job_id,
        fields=msgspec.json.encode(found.fields).decode(),
    )


def archived(found: ArchivedJob) -> pb.ArchivedJob:
    return pb.ArchivedJob(
        id=found.id,
        entrypoint=found.entrypoint,
        payload=found.payload,
        state=_STATES[found.state],
        attempts=found.attempts,
        created_at_ms=to_ms(found.created_at),
        due_at_ms=to_ms(found.due_at),
        finished_at_ms=to_ms(found.finished_at),
        position=found.position,
        sequence=found.sequence,
        claimed_at_ms=ms_of(found.claimed_at),
        worker=found.worker,
        error=found.error,
        result=found.result,
        priority=found.priority,
        max_attempts=found.max_attempts,
        token=found.token,
        key=found.key,
        headers=found.headers,
        zone=found.zone,
        run_at_ms=ms_of(found.run_at),
        blob_bytes=found.blob_bytes,
        tries=map(_attempt, map(unarchived_try, found.tries)),
        waiting=found.waiting,
        crashes=found.crashes,
        max_crashes=found.max_crashes,
        fifo=found.fifo,
        **gained(found),
    )


def _attempt(found: Attempt) -> pb.Attempt:
    return pb.Attempt(
        claimed_at_ms=found.claimed_ms,
        ended_at_ms=found.ended_ms,
        how=_ENDINGS[found.how],
        worker=found.worker,
        token=found.token,
        error=found.error,
    )
