"""Packets on `Exchange`: numbered calls one way, answers with the same numbers the other way, many per packet.

MessagePack instead of protobuf messages: a job is encoded and decoded in one step, without a Python object per field
(measured in decision 13). Requests and answers are arrays that begin with their name and only ever gain fields at the
end, with defaults; jobs and specs are maps. An entry of an unknown kind is refused alone, without affecting the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, cast

import msgspec

from casque.errors import UnknownOutcomeError
from casque.service import Known, Stats
from casque.service.requests import EVERY, Enqueue, Heartbeats, Request, Settle, answer_of
from casque.transport.errors import WireError, from_wire, to_wire
from casque.transport.settling import Refused, answers_to, refused_among
from casque.types import (
    Admission,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Reach,
    Schedule,
    ZoneLease,
    ZoneStanding,
)

A = TypeVar("A")
T = TypeVar("T")

# --- Calls ---


if TYPE_CHECKING:
    Asked: TypeAlias = Request[Any]
    Naming: TypeAlias = Request[Any]
else:
    Asked = Union[EVERY]  # noqa: UP007  of a tuple
    Naming = Union[tuple(kind for kind in EVERY if kind.naming)]  # noqa: UP007


class Within(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="within"):
    """Used only between the brokers of a ring: a request together with the limits of its caller. The answer is that of
    the inner request. A broker that does not know this type refuses it, so the inner request is never run unchecked."""

    reach: Reach
    request: Naming


class Leave(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="leave"):
    """The caller of this number no longer waits for the answer. The call is still answered: with its result, or with
    `Failed` and an unknown outcome if it was cut off."""


class Call(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A numbered request."""

    number: int
    request: Asked | Within | Leave


# --- Answers ---


class Done(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="done"):
    number: int


class Job(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="job"):
    number: int
    job: JobRecord | None


class Jobs(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="jobs"):
    """An answer too large for one packet comes in several; all but the last set `more`."""

    number: int
    jobs: list[JobRecord]
    more: bool = False


class Fresh(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The broker's fields of a job that was added exactly as requested."""

    sequence: int
    created_ms: int
    state: JobState
    due_ms: int


class Added(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="added"):
    """The jobs of an enqueue, in order. The caller has their specs already, so they are not sent back."""

    number: int
    jobs: list[Fresh]


class AddedRun(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="run"):
    """The same for a bulk of similar jobs: due at the same time and numbered consecutively."""

    number: int
    sequence: int
    """Sequence number of the first."""
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
    """Split like `Jobs` if it does not fit into one packet."""

    number: int
    beats: list[Beat]
    more: bool = False


class Settled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="settled"):
    """All outcomes were carried out except the refused ones listed here."""

    number: int
    refused: list[Refused] = []


class Count(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="count"):
    number: int
    count: int


class Counted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="stats"):
    number: int
    stats: Stats


class Planned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="schedules"):
    """All schedules, or the requested one. Split like `Jobs` if they do not fit into one packet."""

    number: int
    schedules: list[Schedule]
    more: bool = False


class Zones(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zones"):
    """Split like `Jobs` if they do not fit into one packet."""

    number: int
    zones: list[ZoneStanding]
    more: bool = False


class Knows(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="knows"):
    number: int
    known: Known


class Peeked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="peeked"):
    """Split like `Jobs` if they do not fit into one packet."""

    number: int
    zones: list[PeekedZone]
    more: bool = False


class ZoneHeld(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_held"):
    """The lease of a zone; None if it was not free."""

    number: int
    lease: ZoneLease | None = None


class Failed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="failed"):
    number: int
    error: WireError


class Farewell(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="farewell"):
    """The server is stopping. It has not looked at any call with a higher number than this one."""

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

HELLO = ("casque-exchange", "3")
"""The first metadata that a server sends on an accepted stream. Until then a client sends nothing."""

_encoder = msgspec.msgpack.Encoder()
_calls = msgspec.msgpack.Decoder(list[Call])
_answers = msgspec.msgpack.Decoder(list[Answer])
_entries = msgspec.msgpack.Decoder(list[msgspec.Raw])
_call = msgspec.msgpack.Decoder(Call)
_number = msgspec.msgpack.Decoder(int)
NO_PACKET = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions raised by bytes that cannot be decoded."""


class Unreadable(msgspec.Struct, frozen=True):
    """An entry that this release cannot read. Its number is known if it looks like an entry at all."""

    number: int | None
    why: str


def encode(entries: Sequence[Call | Answer]) -> bytes:
    return _encoder.encode(entries)


def decode_calls(body: bytes) -> list[Call] | list[Call | Unreadable]:
    """Raises one of `NO_PACKET` for bytes that are not a list of entries."""
    try:
        return _calls.decode(body)
    except NO_PACKET:
        return [_one(entry) for entry in _entries.decode(body)]


def decode_answers(body: bytes) -> list[Answer]:
    return _answers.decode(body)


def expect(answer: object, kind: type[T]) -> T:
    """The answer, if it has the type that this call returns on success.

    Raises:
        UnknownOutcomeError: the answer belongs to another call, and says nothing about this one.
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
    """Reads the number only; the rest may contain invalid text."""
    try:
        return _number.decode(_entries.decode(entry)[0])
    except (*NO_PACKET, IndexError):
        return None


def answer_to(number: int, request: Request[Any], value: Any) -> Answer:
    """Wrap a queue's answer for the wire."""
    if type(request) is Enqueue:
        return added(number, request.specs, value)
    if type(request) is Settle:
        return Settled(number, refused_among(value))
    if type(request) is Heartbeats:
        return Beats(number, [Beat(a) if isinstance(a, JobRecord) else Beat(None, to_wire(a)) for a in value])
    wanted = answer_of(type(request))
    if wanted is None:
        return Done(number)
    kind = _KINDS[wanted]
    if kind is Planned and isinstance(value, Schedule):
        value = [value]
    elif kind is Count:
        value = int(value)  # this wire sends True as 1
    return cast("Answer", kind(number, value))


def value_of(request: Request[A], answer: Answer) -> A:
    """Unwrap an answer from the wire.

    Raises:
        UnknownOutcomeError: the answer belongs to another call, and says nothing about this request.
    """
    return cast(A, _value_of(request, answer))


def _value_of(request: Request[Any], answer: Answer) -> Any:
    if type(request) is Enqueue:
        return _added_jobs(request.specs, answer)
    if type(request) is Settle:
        return answers_to(request.outcomes, expect(answer, Settled).refused)
    if type(request) is Heartbeats:
        beats = expect(answer, Beats).beats
        return [expect(beat.job, JobRecord) if beat.error is None else from_wire(beat.error) for beat in beats]
    wanted = answer_of(type(request))
    if wanted is None:
        expect(answer, Done)
        return None
    value = getattr(expect(answer, _KINDS[wanted]), _KINDS[wanted].__struct_fields__[1])
    if wanted is Schedule:
        return value[0]
    if wanted is JobRecord or wanted is ZoneLease:
        return expect(value, wanted)
    return bool(value) if wanted is bool else value


def _added_jobs(specs: Sequence[JobSpec], answer: Answer) -> Sequence[JobRecord]:
    if type(answer) is AddedRun:
        created_ms, state, due_ms = answer.created_ms, answer.state, answer.due_ms
        numbered = enumerate(specs, answer.sequence)
        return tuple([JobRecord(spec, sequence, created_ms, state, due_ms) for sequence, spec in numbered])
    if type(answer) is Added:
        paired = zip(specs, answer.jobs, strict=True)
        return tuple([JobRecord(s, new.sequence, new.created_ms, new.state, new.due_ms) for s, new in paired])
    return tuple(expect(answer, Jobs).jobs)


_KINDS: dict[Any, type[Any]] = {
    JobRecord: Job,
    JobRecord | None: Job,
    list[JobRecord]: Jobs,
    Admission: Taken,
    int: Count,
    bool: Count,
    Stats: Counted,
    Schedule: Planned,
    list[Schedule]: Planned,
    list[ZoneStanding]: Zones,
    list[PeekedZone]: Peeked,
    ZoneLease: ZoneHeld,
    ZoneLease | None: ZoneHeld,
    Known: Knows,
}
"""The packet type for each answer type. A new request whose answer has one of these types needs no change here."""


def added(number: int, asked: Sequence[JobSpec], jobs: Sequence[JobRecord]) -> Added | AddedRun | Jobs:
    """The short answer if it is complete, the long one if a job differs from the request."""
    if not jobs:
        return Added(number, [])
    first = jobs[0]
    sequence, due_ms, state = first.sequence, first.due_ms, first.state
    alike = True
    for spec, job in zip(asked, jobs, strict=True):
        # A job without a token was never claimed, so nothing else can have happened to it.
        if job.token or not (job.spec is spec or job.spec == spec):
            return Jobs(number, list(jobs))
        if job.sequence != sequence or job.due_ms != due_ms or job.state is not state:
            alike = False
        sequence += 1
    if alike and len({job.created_ms for job in jobs}) == 1:
        return AddedRun(number, first.sequence, first.created_ms, state, due_ms)
    return Added(number, [Fresh(job.sequence, job.created_ms, job.state, job.due_ms) for job in jobs])


def parts(answer: Answer, bytes_max: int) -> Sequence[Answer]:
    """Split an answer into pieces that fit into packets. One job is never cut in two."""
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
    """Pieces, each with a flag for whether more follow."""
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
    """Estimated size in bytes: the payload, the attempts, and a guess for the rest."""
    size = len(job.spec.payload) + 512
    return size + job.tries_bytes if job.tries else size


def answer_weight(answer: Answer) -> int:
    """The same for a whole answer. Called for every answer, so the frequent types come first."""
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
