"""What travels on `Exchange`: calls with numbers one way, answers with the same numbers the other, many per packet.

MessagePack and not protobuf messages: a job is then encoded and decoded in one step, without a Python object per field
(measured in decision 13). The structs are arrays that begin with their name and only ever gain fields at the end, with
defaults; jobs and specs are maps. An entry of a kind that is not known is refused by itself and harms no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from casque.errors import UnknownOutcomeError
from casque.service import Known, Lease, Place, Stats
from casque.transport.errors import WireError
from casque.transport.settling import Refused
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Reach,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")

# --- Calls ---


class OutcomeOf(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An `Outcome`, short: there may be a hundred thousand in a call."""

    job_id: str
    token: int
    error: str | None = None
    result: bytes | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    final: bool = False
    crashed: bool = False
    snoozed: bool = False
    cancelled: bool = False
    declined: bool = False


class EnqueueCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="enqueue"):
    number: int
    specs: tuple[JobSpec, ...]
    request_id: str | None = None
    generation: int = 0
    """Only between the brokers of a ring: the one that the caller knows."""


class AdmitCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="admit"):
    number: int
    source: str
    batch: int
    parts: tuple[StagedPart, ...]
    skip_known: bool = False
    generation: int = 0
    """Only between the brokers of a ring: the one that the caller knows."""


class DequeueCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="dequeue"):
    number: int
    entrypoints: tuple[str, ...] | None
    limit: int
    lease_ms: int | None = None
    worker: str | None = None
    wait_s: float = 0.0
    request_id: str | None = None
    zones: tuple[str, ...] | None = None
    first: bool = False
    zone_lease: tuple[str, int] | None = None
    """Zone and token."""


class AckCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ack"):
    number: int
    job_id: str
    token: int | None = None
    result: bytes | None = None
    request_id: str | None = None


class NackCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="nack"):
    number: int
    job_id: str
    token: int | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    error: str | None = None
    request_id: str | None = None


class SettleCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="settle"):
    number: int
    outcomes: tuple[OutcomeOf, ...]
    request_id: str | None = None


class HeartbeatCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="heartbeat"):
    number: int
    job_id: str
    token: int | None = None


class HeartbeatsCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="heartbeats"):
    number: int
    leases: tuple[Lease, ...]


class GiveBackCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="give_back"):
    number: int
    job_id: str
    token: int


class CancelCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="cancel"):
    number: int
    job_id: str
    request_id: str | None = None


class RetryCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="retry"):
    number: int
    job_id: str
    request_id: str | None = None


class PurgeCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="purge"):
    number: int
    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None


class RequeueCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="requeue"):
    number: int
    older_ms: int
    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None


class GateCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="gate"):
    number: int
    gate: Gate
    entrypoint: str | None = None
    request_id: str | None = None


class ZoneCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone"):
    number: int
    zone: str
    rules: ZoneRules
    request_id: str | None = None


class ZonesCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zones"):
    number: int
    names: frozenset[str] | None = None
    limit: int = 100


class PeekCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="peek_zones"):
    number: int
    entrypoints: tuple[str, ...] | None = None
    names: frozenset[str] | None = None
    limit: int = 100


class LeaseZoneCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="lease_zone"):
    number: int
    zone: str
    lease_ms: int | None = None
    worker: str | None = None
    request_id: str | None = None


class HeartbeatZoneCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="heartbeat_zone"):
    number: int
    zone: str
    token: int


class ReleaseZoneCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="release_zone"):
    number: int
    zone: str
    token: int


class FindCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="find"):
    number: int
    job_id: str


class StatsCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="stats"):
    number: int


class SetScheduleCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="set_schedule"):
    number: int
    spec: ScheduleSpec


class SchedulesCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="schedules"):
    number: int


class PauseScheduleCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="pause_schedule"):
    number: int
    name: str
    paused: bool


class DropScheduleCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="drop_schedule"):
    number: int
    name: str


class AdoptCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="adopt"):
    """Only between the brokers of a ring, like the next ones. Answered with the generation that the shard knows."""

    number: int
    generation: int
    size: int


class KnownCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="known"):
    number: int
    job_ids: tuple[str, ...]
    request_id: str | None = None
    places: tuple[Place, ...] = ()
    admission: tuple[str, int] | None = None


class CopyGateCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="copy_gate"):
    number: int
    gate: Gate
    entrypoint: str | None
    expected: Gate


class CopyZoneCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="copy_zone"):
    number: int
    zone: str
    rules: ZoneRules
    expected: ZoneRules


class DueCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="due"):
    """Answered with 1 or 0."""

    number: int
    entrypoints: tuple[str, ...] | None = None
    zones: tuple[str, ...] | None = None


Named: TypeAlias = (
    AckCall
    | NackCall
    | SettleCall
    | HeartbeatCall
    | HeartbeatsCall
    | GiveBackCall
    | CancelCall
    | RetryCall
    | FindCall
    | SetScheduleCall
    | PauseScheduleCall
    | DropScheduleCall
)
"""What names jobs or schedules."""


class WithinCall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="within"):
    """Only between the brokers of a ring: a call of somebody who may name only some jobs. Its answer is that of the
    call in it. A broker that does not know it refuses it, and does not carry out what nobody has judged."""

    number: int
    reach: Reach
    call: Named


class Leave(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="leave"):
    """The caller of this number no longer waits for the answer. The call still gets one: what became of it, or
    `Failed` with an unknown outcome if it was cut off."""

    number: int


Verb: TypeAlias = (
    EnqueueCall
    | AdmitCall
    | DequeueCall
    | AckCall
    | NackCall
    | SettleCall
    | HeartbeatCall
    | HeartbeatsCall
    | GiveBackCall
    | CancelCall
    | RetryCall
    | PurgeCall
    | RequeueCall
    | GateCall
    | ZoneCall
    | ZonesCall
    | PeekCall
    | LeaseZoneCall
    | HeartbeatZoneCall
    | ReleaseZoneCall
    | FindCall
    | StatsCall
    | SetScheduleCall
    | SchedulesCall
    | PauseScheduleCall
    | DropScheduleCall
    | AdoptCall
    | KnownCall
    | CopyGateCall
    | CopyZoneCall
    | DueCall
    | WithinCall
)
Call: TypeAlias = Verb | Leave


# --- Answers ---


class Done(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="done"):
    number: int


class Job(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="job"):
    number: int
    job: JobRecord | None


class Jobs(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="jobs"):
    """What does not fit into one packet comes in several: all but the last say that there is `more`."""

    number: int
    jobs: list[JobRecord]
    more: bool = False


class Fresh(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the broker knows about a job that was added as it was asked for."""

    sequence: int
    created_ms: int
    state: JobState
    due_ms: int


class Added(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="added"):
    """The jobs of an enqueue, in order. The caller has their specs already, so they are not sent back."""

    number: int
    jobs: list[Fresh]


class AddedRun(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="run"):
    """The same for jobs that are alike, as those of a bulk are: due together, and numbered one after the other."""

    number: int
    sequence: int
    """Of the first."""
    created_ms: int
    state: JobState
    due_ms: int


class Taken(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="admission"):
    number: int
    admission: Admission


class Beat(msgspec.Struct, frozen=True, gc=False, array_like=True):
    job: JobRecord | None
    error: WireError | None = None


class Beats(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="beats"):
    """In several, like jobs, if they do not fit into one packet."""

    number: int
    beats: list[Beat]
    more: bool = False


class Settled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="settled"):
    """All outcomes were carried out but for those that are named."""

    number: int
    refused: list[Refused] = []


class Count(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="count"):
    number: int
    count: int


class Counted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="stats"):
    number: int
    stats: Stats


class Planned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="schedules"):
    """Schedules: all, or the one that was asked about. In several, like jobs, if they do not fit into one packet."""

    number: int
    schedules: list[Schedule]
    more: bool = False


class Zones(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zones"):
    """In several, like jobs, if they do not fit into one packet."""

    number: int
    zones: list[ZoneStanding]
    more: bool = False


class Knows(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="knows"):
    number: int
    known: Known


class Peeked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="peeked"):
    """In several, like jobs, if they do not fit into one packet."""

    number: int
    zones: list[PeekedZone]
    more: bool = False


class ZoneHeld(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_held"):
    """The lease of a zone; None if it was not to be had."""

    number: int
    lease: ZoneLease | None = None


class Failed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="failed"):
    number: int
    error: WireError


class Farewell(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="farewell"):
    """The server is stopping. No call with a higher number than this one was looked at."""

    number: int


Answer: TypeAlias = (
    Done
    | Job
    | Jobs
    | Added
    | AddedRun
    | Taken
    | Beats
    | Settled
    | Count
    | Counted
    | Planned
    | Zones
    | Knows
    | Peeked
    | ZoneHeld
    | Failed
    | Farewell
)

HELLO = ("casque-exchange", "1")
"""The first metadata that a server sends on a stream that it has taken. Until then a client sends nothing."""

_encoder = msgspec.msgpack.Encoder()
_calls = msgspec.msgpack.Decoder(list[Call])
_answers = msgspec.msgpack.Decoder(list[Answer])
_entries = msgspec.msgpack.Decoder(list[msgspec.Raw])
_call = msgspec.msgpack.Decoder(Call)
_name = msgspec.msgpack.Decoder(str)
_number = msgspec.msgpack.Decoder(int)
NO_PACKET = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What bytes raise that cannot be read."""


class Unreadable(msgspec.Struct, frozen=True):
    """An entry that is no call of this release. Its number is known if it looks like an entry at all."""

    number: int | None
    why: str


def encode(entries: Sequence[Call | Answer]) -> bytes:
    return _encoder.encode(entries)


def decode_calls(body: bytes) -> list[Call] | list[Call | Unreadable]:
    """Raises one of `NO_PACKET` for what is no list of entries at all."""
    try:
        return _calls.decode(body)
    except NO_PACKET:
        return [_one(entry) for entry in _entries.decode(body)]


def decode_answers(body: bytes) -> list[Answer]:
    return _answers.decode(body)


def expect(answer: object, kind: type[T]) -> T:
    """The answer, if it is of the kind that this call has when it was carried out.

    Raises:
        UnknownOutcomeError: it is the answer to something else, which says nothing about this call.
    """
    if type(answer) is not kind:
        raise UnknownOutcomeError(
            f"the broker sent an answer of another kind ({type(answer).__name__} for {kind.__name__}); the call may "
            "have been carried out, so look first"
        )
    return answer


def _one(entry: msgspec.Raw) -> Call | Unreadable:
    try:
        call: Call = _call.decode(entry)
        return call
    except NO_PACKET as error:
        return Unreadable(_number_of(entry), str(error))


def _number_of(entry: msgspec.Raw) -> int | None:
    """Without a look at the rest, which may be text that is none."""
    try:
        name, number, *_ = _entries.decode(entry)
        _name.decode(name)
        return _number.decode(number)
    except (*NO_PACKET, ValueError):
        return None


def added(number: int, asked: Sequence[JobSpec], jobs: Sequence[JobRecord]) -> Added | AddedRun | Jobs:
    """The short answer where it says everything, the long one where a job is not what was asked for."""
    if not jobs:
        return Added(number, [])
    first = jobs[0]
    sequence, due_ms, state = first.sequence, first.due_ms, first.state
    alike = True
    for spec, job in zip(asked, jobs, strict=True):
        # A job without a token was never claimed, so that nothing else can have happened to it.
        if job.token or not (job.spec is spec or job.spec == spec):
            return Jobs(number, list(jobs))
        if job.sequence != sequence or job.due_ms != due_ms or job.state is not state:
            alike = False
        sequence += 1
    if alike and len({job.created_ms for job in jobs}) == 1:
        return AddedRun(number, first.sequence, first.created_ms, state, due_ms)
    return Added(number, [Fresh(job.sequence, job.created_ms, job.state, job.due_ms) for job in jobs])


def parts(answer: Answer, bytes_max: int) -> Sequence[Answer]:
    """The same answer in pieces that fit into packets. One job is never cut in two."""
    match answer:
        case Jobs(number, jobs):
            jobs_cut = _cut(jobs, weight, bytes_max)
            return [Jobs(number, piece, more) for piece, more in jobs_cut]
        case Beats(number, beats):
            beats_cut = _cut(beats, _beat_weight, bytes_max)
            return [Beats(number, piece, more) for piece, more in beats_cut]
        case Planned(number, schedules):
            schedules_cut = _cut(schedules, _schedule_weight, bytes_max)
            return [Planned(number, piece, more) for piece, more in schedules_cut]
        case Zones(number, zones):
            zones_cut = _cut(zones, _zone_weight, bytes_max)
            return [Zones(number, piece, more) for piece, more in zones_cut]
        case Peeked(number, peeked):
            peeked_cut = _cut(peeked, _zone_weight, bytes_max)
            return [Peeked(number, piece, more) for piece, more in peeked_cut]
        case _:
            return (answer,)


def _cut(values: list[T], weigh: Callable[[T], int], bytes_max: int) -> list[tuple[list[T], bool]]:
    """Pieces, each with whether there are more to come."""
    pieces: list[list[T]] = [[]]
    size = 0
    for value in values:
        size += weigh(value)
        if size > bytes_max and pieces[-1]:
            pieces.append([])
            size = weigh(value)
        pieces[-1].append(value)
    last = len(pieces) - 1
    return [(piece, index < last) for index, piece in enumerate(pieces)]


def weight(job: JobRecord) -> int:
    """About how many bytes it takes: the payload, the tries, and a guess at the rest."""
    size = len(job.spec.payload) + 512
    return size + job.tries_bytes if job.tries else size


def answer_weight(answer: Answer) -> int:
    """The same for a whole answer; asked for every one, so the frequent ones come first."""
    if type(answer) is Done or type(answer) is AddedRun:
        return 32
    if type(answer) is Jobs:
        return sum([weight(job) for job in answer.jobs])
    if type(answer) is Added:
        return 32 * len(answer.jobs)
    if type(answer) is Job and answer.job is not None:
        return weight(answer.job)
    if type(answer) is Settled:
        return 32 + sum([5 * len(why.places) for why in answer.refused])
    if type(answer) is Beats:
        return sum([_beat_weight(beat) for beat in answer.beats])
    if type(answer) is Planned:
        return sum(map(_schedule_weight, answer.schedules))
    if type(answer) is Zones or type(answer) is Peeked:
        return sum(map(_zone_weight, answer.zones))
    return 256


def _schedule_weight(schedule: Schedule) -> int:
    return len(schedule.spec.job.payload) + 512


def _zone_weight(zone: ZoneStanding | PeekedZone) -> int:
    return 4 * len(zone.zone) + 256


def _beat_weight(beat: Beat) -> int:
    return 256 if beat.job is None else weight(beat.job)
