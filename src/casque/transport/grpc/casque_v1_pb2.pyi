from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_READY: _ClassVar[JobState]
    JOB_STATE_DELAYED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_DONE: _ClassVar[JobState]
    JOB_STATE_DEAD: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]

class Gate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_UNSPECIFIED: _ClassVar[Gate]
    GATE_OPEN: _ClassVar[Gate]
    GATE_PAUSED: _ClassVar[Gate]
    GATE_DRAINING: _ClassVar[Gate]

class Ending(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDING_UNSPECIFIED: _ClassVar[Ending]
    ENDING_FAILED: _ClassVar[Ending]
    ENDING_EXPIRED: _ClassVar[Ending]
    ENDING_CRASHED: _ClassVar[Ending]

class Missed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSED_UNSPECIFIED: _ClassVar[Missed]
    MISSED_SKIP: _ClassVar[Missed]
    MISSED_ONE: _ClassVar[Missed]
    MISSED_ALL: _ClassVar[Missed]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_READY: JobState
JOB_STATE_DELAYED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_DONE: JobState
JOB_STATE_DEAD: JobState
JOB_STATE_CANCELLED: JobState
GATE_UNSPECIFIED: Gate
GATE_OPEN: Gate
GATE_PAUSED: Gate
GATE_DRAINING: Gate
ENDING_UNSPECIFIED: Ending
ENDING_FAILED: Ending
ENDING_EXPIRED: Ending
ENDING_CRASHED: Ending
MISSED_UNSPECIFIED: Missed
MISSED_SKIP: Missed
MISSED_ONE: Missed
MISSED_ALL: Missed

class NewJob(_message.Message):
    __slots__ = ("id", "entrypoint", "payload", "priority", "run_at_ms", "delay_ms", "max_attempts", "key", "headers", "zone", "max_crashes", "fifo", "tags", "expires_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MAX_CRASHES_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    entrypoint: str
    payload: bytes
    priority: int
    run_at_ms: int
    delay_ms: int
    max_attempts: int
    key: str
    headers: _containers.ScalarMap[str, str]
    zone: str
    max_crashes: int
    fifo: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    expires_ms: int
    def __init__(self, id: _Optional[str] = ..., entrypoint: _Optional[str] = ..., payload: _Optional[bytes] = ..., priority: _Optional[int] = ..., run_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., zone: _Optional[str] = ..., max_crashes: _Optional[int] = ..., fifo: _Optional[bool] = ..., tags: _Optional[_Iterable[str]] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "entrypoint", "payload", "priority", "state", "sequence", "created_at_ms", "due_at_ms", "token", "attempts", "max_attempts", "worker", "lease_ms", "claimed_at_ms", "beat_at_ms", "error", "run_at_ms", "key", "headers", "zone", "tries", "crashes", "max_crashes", "progress", "fifo", "declined", "tags", "expires_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BEAT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    CRASHES_FIELD_NUMBER: _ClassVar[int]
    MAX_CRASHES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    entrypoint: str
    payload: bytes
    priority: int
    state: JobState
    sequence: int
    created_at_ms: int
    due_at_ms: int
    token: int
    attempts: int
    max_attempts: int
    worker: str
    lease_ms: int
    claimed_at_ms: int
    beat_at_ms: int
    error: str
    run_at_ms: int
    key: str
    headers: _containers.ScalarMap[str, str]
    zone: str
    tries: _containers.RepeatedCompositeFieldContainer[Attempt]
    crashes: int
    max_crashes: int
    progress: Progress
    fifo: bool
    declined: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    expires_ms: int
    def __init__(self, id: _Optional[str] = ..., entrypoint: _Optional[str] = ..., payload: _Optional[bytes] = ..., priority: _Optional[int] = ..., state: _Optional[_Union[JobState, str]] = ..., sequence: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., token: _Optional[int] = ..., attempts: _Optional[int] = ..., max_attempts: _Optional[int] = ..., worker: _Optional[str] = ..., lease_ms: _Optional[int] = ..., claimed_at_ms: _Optional[int] = ..., beat_at_ms: _Optional[int] = ..., error: _Optional[str] = ..., run_at_ms: _Optional[int] = ..., key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., zone: _Optional[str] = ..., tries: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., crashes: _Optional[int] = ..., max_crashes: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., fifo: _Optional[bool] = ..., declined: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("done", "total", "note")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    done: float
    total: float
    note: str
    def __init__(self, done: _Optional[float] = ..., total: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("claimed_at_ms", "ended_at_ms", "how", "worker", "token", "error")
    CLAIMED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    claimed_at_ms: int
    ended_at_ms: int
    how: Ending
    worker: str
    token: int
    error: str
    def __init__(self, claimed_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., how: _Optional[_Union[Ending, str]] = ..., worker: _Optional[str] = ..., token: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("name", "code", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    code: str
    message: str
    def __init__(self, name: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("jobs", "request_id")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
    request_id: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class StagedPart(_message.Message):
    __slots__ = ("key", "sha256", "jobs", "bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    key: str
    sha256: str
    jobs: int
    bytes: int
    def __init__(self, key: _Optional[str] = ..., sha256: _Optional[str] = ..., jobs: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("source", "batch", "parts", "skip_known")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SKIP_KNOWN_FIELD_NUMBER: _ClassVar[int]
    source: str
    batch: int
    parts: _containers.RepeatedCompositeFieldContainer[StagedPart]
    skip_known: bool
    def __init__(self, source: _Optional[str] = ..., batch: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[StagedPart, _Mapping]]] = ..., skip_known: _Optional[bool] = ...) -> None: ...

class AdmitResponse(_message.Message):
    __slots__ = ("jobs", "skipped", "repeated", "position")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    skipped: int
    repeated: bool
    position: int
    def __init__(self, jobs: _Optional[int] = ..., skipped: _Optional[int] = ..., repeated: _Optional[bool] = ..., position: _Optional[int] = ...) -> None: ...

class DequeueRequest(_message.Message):
    __slots__ = ("entrypoints", "limit", "wait_ms", "lease_ms", "worker", "request_id", "zones", "zone_lease")
    ENTRYPOINTS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    ZONE_LEASE_FIELD_NUMBER: _ClassVar[int]
    entrypoints: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    wait_ms: int
    lease_ms: int
    worker: str
    request_id: str
    zones: _containers.RepeatedScalarFieldContainer[str]
    zone_lease: ZoneLease
    def __init__(self, entrypoints: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., worker: _Optional[str] = ..., request_id: _Optional[str] = ..., zones: _Optional[_Iterable[str]] = ..., zone_lease: _Optional[_Union[ZoneLease, _Mapping]] = ...) -> None: ...

class DequeueResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("job_id", "token", "result", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: int
    result: bytes
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[int] = ..., result: _Optional[bytes] = ..., request_id: _Optional[str] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("job_id", "token", "delay_ms", "backoff", "error", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: int
    delay_ms: int
    backoff: Backoff
    error: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[int] = ..., delay_ms: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., error: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Backoff(_message.Message):
    __slots__ = ("base_ms", "cap_ms")
    BASE_MS_FIELD_NUMBER: _ClassVar[int]
    CAP_MS_FIELD_NUMBER: _ClassVar[int]
    base_ms: int
    cap_ms: int
    def __init__(self, base_ms: _Optional[int] = ..., cap_ms: _Optional[int] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("job_id", "token", "error", "result", "delay_ms", "backoff", "final", "crashed", "snoozed", "cancelled", "declined")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    CRASHED_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: int
    error: str
    result: bytes
    delay_ms: int
    backoff: Backoff
    final: bool
    crashed: bool
    snoozed: bool
    cancelled: bool
    declined: bool
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[int] = ..., error: _Optional[str] = ..., result: _Optional[bytes] = ..., delay_ms: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., final: _Optional[bool] = ..., crashed: _Optional[bool] = ..., snoozed: _Optional[bool] = ..., cancelled: _Optional[bool] = ..., declined: _Optional[bool] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("outcomes", "request_id")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    request_id: str
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("refused",)
    class Refused(_message.Message):
        __slots__ = ("name", "code", "places")
        NAME_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        PLACES_FIELD_NUMBER: _ClassVar[int]
        name: str
        code: str
        places: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, name: _Optional[str] = ..., code: _Optional[str] = ..., places: _Optional[_Iterable[int]] = ...) -> None: ...
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[SettleResponse.Refused]
    def __init__(self, refused: _Optional[_Iterable[_Union[SettleResponse.Refused, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("job_id", "token", "progress")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: int
    progress: Progress
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("answers",)
    class Answer(_message.Message):
        __slots__ = ("job", "error")
        JOB_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        job: Job
        error: Error
        def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[HeartbeatResponse.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[HeartbeatResponse.Answer, _Mapping]]] = ...) -> None: ...

class GiveBackRequest(_message.Message):
    __slots__ = ("job_id", "token")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: int
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class GiveBackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RetryResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class RescheduleRequest(_message.Message):
    __slots__ = ("job_id", "run_at_ms", "priority", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    run_at_ms: int
    priority: int
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., run_at_ms: _Optional[int] = ..., priority: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class RescheduleResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("entrypoint", "request_id", "zone")
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    entrypoint: str
    request_id: str
    zone: str
    def __init__(self, entrypoint: _Optional[str] = ..., request_id: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("purged",)
    PURGED_FIELD_NUMBER: _ClassVar[int]
    purged: int
    def __init__(self, purged: _Optional[int] = ...) -> None: ...

class RequeueStaleRequest(_message.Message):
    __slots__ = ("older_ms", "entrypoint", "request_id", "zone")
    OLDER_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    older_ms: int
    entrypoint: str
    request_id: str
    zone: str
    def __init__(self, older_ms: _Optional[int] = ..., entrypoint: _Optional[str] = ..., request_id: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class RequeueStaleResponse(_message.Message):
    __slots__ = ("requeued",)
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    requeued: int
    def __init__(self, requeued: _Optional[int] = ...) -> None: ...

class SetGateRequest(_message.Message):
    __slots__ = ("gate", "entrypoint", "request_id")
    GATE_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    gate: Gate
    entrypoint: str
    request_id: str
    def __init__(self, gate: _Optional[_Union[Gate, str]] = ..., entrypoint: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class SetGateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ZoneRules(_message.Message):
    __slots__ = ("weight", "running_max", "per_second", "paused")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_MAX_FIELD_NUMBER: _ClassVar[int]
    PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    weight: float
    running_max: int
    per_second: float
    paused: bool
    def __init__(self, weight: _Optional[float] = ..., running_max: _Optional[int] = ..., per_second: _Optional[float] = ..., paused: _Optional[bool] = ...) -> None: ...

class SetZoneRequest(_message.Message):
    __slots__ = ("zone", "rules", "request_id")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    zone: str
    rules: ZoneRules
    request_id: str
    def __init__(self, zone: _Optional[str] = ..., rules: _Optional[_Union[ZoneRules, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class SetZoneResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ZonesRequest(_message.Message):
    __slots__ = ("names", "limit")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class ZonesResponse(_message.Message):
    __slots__ = ("zones",)
    class Zone(_message.Message):
        __slots__ = ("zone", "ready", "delayed", "running", "dead", "next_at_ms", "fifo", "rules", "lease")
        ZONE_FIELD_NUMBER: _ClassVar[int]
        READY_FIELD_NUMBER: _ClassVar[int]
        DELAYED_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        DEAD_FIELD_NUMBER: _ClassVar[int]
        NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
        FIFO_FIELD_NUMBER: _ClassVar[int]
        RULES_FIELD_NUMBER: _ClassVar[int]
        LEASE_FIELD_NUMBER: _ClassVar[int]
        zone: str
        ready: int
        delayed: int
        running: int
        dead: int
        next_at_ms: int
        fifo: bool
        rules: ZoneRules
        lease: ZoneLease
        def __init__(self, zone: _Optional[str] = ..., ready: _Optional[int] = ..., delayed: _Optional[int] = ..., running: _Optional[int] = ..., dead: _Optional[int] = ..., next_at_ms: _Optional[int] = ..., fifo: _Optional[bool] = ..., rules: _Optional[_Union[ZoneRules, _Mapping]] = ..., lease: _Optional[_Union[ZoneLease, _Mapping]] = ...) -> None: ...
    ZONES_FIELD_NUMBER: _ClassVar[int]
    zones: _containers.RepeatedCompositeFieldContainer[ZonesResponse.Zone]
    def __init__(self, zones: _Optional[_Iterable[_Union[ZonesResponse.Zone, _Mapping]]] = ...) -> None: ...

class ZoneLease(_message.Message):
    __slots__ = ("zone", "token", "lease_ms", "worker", "leased_at_ms", "beat_at_ms")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEASED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BEAT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    zone: str
    token: int
    lease_ms: int
    worker: str
    leased_at_ms: int
    beat_at_ms: int
    def __init__(self, zone: _Optional[str] = ..., token: _Optional[int] = ..., lease_ms: _Optional[int] = ..., worker: _Optional[str] = ..., leased_at_ms: _Optional[int] = ..., beat_at_ms: _Optional[int] = ...) -> None: ...

class PeekZonesRequest(_message.Message):
    __slots__ = ("entrypoints", "names", "limit")
    ENTRYPOINTS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    entrypoints: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, entrypoints: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class PeekZonesResponse(_message.Message):
    __slots__ = ("zones",)
    class Zone(_message.Message):
        __slots__ = ("zone", "next_at_ms", "due", "fifo")
        ZONE_FIELD_NUMBER: _ClassVar[int]
        NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
        DUE_FIELD_NUMBER: _ClassVar[int]
        FIFO_FIELD_NUMBER: _ClassVar[int]
        zone: str
        next_at_ms: int
        due: bool
        fifo: bool
        def __init__(self, zone: _Optional[str] = ..., next_at_ms: _Optional[int] = ..., due: _Optional[bool] = ..., fifo: _Optional[bool] = ...) -> None: ...
    ZONES_FIELD_NUMBER: _ClassVar[int]
    zones: _containers.RepeatedCompositeFieldContainer[PeekZonesResponse.Zone]
    def __init__(self, zones: _Optional[_Iterable[_Union[PeekZonesResponse.Zone, _Mapping]]] = ...) -> None: ...

class LeaseZoneRequest(_message.Message):
    __slots__ = ("zone", "lease_ms", "worker", "request_id")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    zone: str
    lease_ms: int
    worker: str
    request_id: str
    def __init__(self, zone: _Optional[str] = ..., lease_ms: _Optional[int] = ..., worker: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class LeaseZoneResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ZoneLease
    def __init__(self, lease: _Optional[_Union[ZoneLease, _Mapping]] = ...) -> None: ...

class HeartbeatZoneRequest(_message.Message):
    __slots__ = ("zone", "token")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    zone: str
    token: int
    def __init__(self, zone: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class HeartbeatZoneResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: ZoneLease
    def __init__(self, lease: _Optional[_Union[ZoneLease, _Mapping]] = ...) -> None: ...

class ReleaseZoneRequest(_message.Message):
    __slots__ = ("zone", "token")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    zone: str
    token: int
    def __init__(self, zone: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class ReleaseZoneResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class FindResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("position", "enqueued", "ready", "delayed", "running", "done", "dead", "cancelled", "gate", "gates", "purged")
    class GatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Gate
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Gate, str]] = ...) -> None: ...
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    position: int
    enqueued: int
    ready: int
    delayed: int
    running: int
    done: int
    dead: int
    cancelled: int
    gate: Gate
    gates: _containers.ScalarMap[str, Gate]
    purged: int
    def __init__(self, position: _Optional[int] = ..., enqueued: _Optional[int] = ..., ready: _Optional[int] = ..., delayed: _Optional[int] = ..., running: _Optional[int] = ..., done: _Optional[int] = ..., dead: _Optional[int] = ..., cancelled: _Optional[int] = ..., gate: _Optional[_Union[Gate, str]] = ..., gates: _Optional[_Mapping[str, Gate]] = ..., purged: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("states", "entrypoint", "limit", "after", "packed")
    STATES_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[JobState]
    entrypoint: str
    limit: int
    after: int
    packed: bool
    def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ..., entrypoint: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[int] = ..., packed: _Optional[bool] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("jobs", "packed")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    packed: bytes
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., packed: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("from_position", "until_now", "packed")
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    from_position: int
    until_now: bool
    packed: bool
    def __init__(self, from_position: _Optional[int] = ..., until_now: _Optional[bool] = ..., packed: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("position", "index", "at_ms", "kind", "job_id", "fields")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    position: int
    index: int
    at_ms: int
    kind: str
    job_id: str
    fields: str
    def __init__(self, position: _Optional[int] = ..., index: _Optional[int] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., job_id: _Optional[str] = ..., fields: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("events", "packed")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    packed: bytes
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., packed: _Optional[bytes] = ...) -> None: ...

class ArchiveRequest(_message.Message):
    __slots__ = ("since_ms", "until_ms", "entrypoint", "states", "packed")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    until_ms: int
    entrypoint: str
    states: _containers.RepeatedScalarFieldContainer[JobState]
    packed: bool
    def __init__(self, since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., entrypoint: _Optional[str] = ..., states: _Optional[_Iterable[_Union[JobState, str]]] = ..., packed: _Optional[bool] = ...) -> None: ...

class ArchivedJob(_message.Message):
    __slots__ = ("id", "entrypoint", "payload", "state", "attempts", "created_at_ms", "due_at_ms", "finished_at_ms", "position", "sequence", "claimed_at_ms", "worker", "error", "result", "priority", "max_attempts", "token", "key", "headers", "zone", "run_at_ms", "blob_bytes", "tries", "waiting", "crashes", "max_crashes", "fifo", "tags", "expires_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRYPOINT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    RUN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BLOB_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CRASHES_FIELD_NUMBER: _ClassVar[int]
    MAX_CRASHES_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    entrypoint: str
    payload: bytes
    state: JobState
    attempts: int
    created_at_ms: int
    due_at_ms: int
    finished_at_ms: int
    position: int
    sequence: int
    claimed_at_ms: int
    worker: str
    error: str
    result: bytes
    priority: int
    max_attempts: int
    token: int
    key: str
    headers: _containers.ScalarMap[str, str]
    zone: str
    run_at_ms: int
    blob_bytes: int
    tries: _containers.RepeatedCompositeFieldContainer[Attempt]
    waiting: bool
    crashes: int
    max_crashes: int
    fifo: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    expires_ms: int
    def __init__(self, id: _Optional[str] = ..., entrypoint: _Optional[str] = ..., payload: _Optional[bytes] = ..., state: _Optional[_Union[JobState, str]] = ..., attempts: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., due_at_ms: _Optional[int] = ..., finished_at_ms: _Optional[int] = ..., position: _Optional[int] = ..., sequence: _Optional[int] = ..., claimed_at_ms: _Optional[int] = ..., worker: _Optional[str] = ..., error: _Optional[str] = ..., result: _Optional[bytes] = ..., priority: _Optional[int] = ..., max_attempts: _Optional[int] = ..., token: _Optional[int] = ..., key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., zone: _Optional[str] = ..., run_at_ms: _Optional[int] = ..., blob_bytes: _Optional[int] = ..., tries: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., waiting: _Optional[bool] = ..., crashes: _Optional[int] = ..., max_crashes: _Optional[int] = ..., fifo: _Optional[bool] = ..., tags: _Optional[_Iterable[str]] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ArchiveResponse(_message.Message):
    __slots__ = ("jobs", "packed")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[ArchivedJob]
    packed: bytes
    def __init__(self, jobs: _Optional[_Iterable[_Union[ArchivedJob, _Mapping]]] = ..., packed: _Optional[bytes] = ...) -> None: ...

class Packet(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    def __init__(self, body: _Optional[bytes] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "cron", "tz", "missed", "job", "origin", "paused", "next_at_ms", "last_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TZ_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cron: str
    tz: str
    missed: Missed
    job: NewJob
    origin: str
    paused: bool
    next_at_ms: int
    last_at_ms: int
    def __init__(self, name: _Optional[str] = ..., cron: _Optional[str] = ..., tz: _Optional[str] = ..., missed: _Optional[_Union[Missed, str]] = ..., job: _Optional[_Union[NewJob, _Mapping]] = ..., origin: _Optional[str] = ..., paused: _Optional[bool] = ..., next_at_ms: _Optional[int] = ..., last_at_ms: _Optional[int] = ...) -> None: ...

class SetScheduleRequest(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class SetScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class SchedulesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class PauseScheduleRequest(_message.Message):
    __slots__ = ("name", "paused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    paused: bool
    def __init__(self, name: _Optional[str] = ..., paused: _Optional[bool] = ...) -> None: ...

class PauseScheduleResponse(_message.Message):
    __slots__ = ("schedule",)
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class DropScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
