"""How bad the weather is: rates of faults, and how far clocks go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from casque.settings import QueueSettings


class Fault(StrEnum):
    """What happens to one request, to a node, or to its clock."""

    BEFORE = "lost before"
    """A write that never arrives: unknown to its sender."""
    AFTER = "lost after"
    """A write that is applied and whose reply is lost."""
    DELAYED = "delayed"
    """Unknown now, applied later: perhaps after its sender died, or went on."""
    DUPLICATED = "duplicated"
    """Arrives twice; the sender hears of the first, the second meets its condition again."""
    HIDDEN = "hidden retry"
    """Sent twice by a client library, which tells its caller only of the second: one's own success looks lost."""
    UNSYNCED = "sync failed"
    """Written and not made durable: unknown to its sender. It lands when a later request for the key makes it durable,
    and is gone if the power fails before."""
    THROTTLED = "throttled"
    """Refused by the store: surely nothing was written."""
    SLOW = "slow"
    READ_FAILED = "read failed"
    READ_SLOW = "read slow"
    CRASH = "crash"
    CRASH_IN_WRITE = "crash in write"
    CLOSE = "close"
    PAUSE = "pause"
    SLEEP = "sleep over a write"
    """Stopped with the answer to a write under way, until the log is collected beyond it."""
    PARTITION = "partition"
    OUTAGE = "outage"
    """For a while the store refuses every write of a node, and says so."""
    CLOCK_JUMP = "clock jump"
    POWER = "power failure"
    """Every process dies at once, and with them what was not synced."""
    FAILOVER_STEP = "clock step on failover"
    """A process dies, and whoever takes over has a clock that is minutes ahead."""
    CLOCK_STEP = "clock step"
    """A wall clock is minutes off until somebody notices, often when a process begins or takes over."""
    CALLER_LEFT = "caller left"
    SHARD_AWAY = "shard away"
    """For a while the store refuses whatever is asked of one shard, and says so."""
    GONE = "payload gone"
    """A large payload is deleted by mistake: every read of it finds nothing."""
    CUT = "connection cut"
    """Between a caller and a broker, or two brokers: each side finds out by itself."""


STEP_S = 1200.0
"""More than the quarter of an hour for which request ids are remembered."""
RING_STEP_S = 6.0
"""The same for rings, which remember requests for seconds here."""
PAYLOAD_MAX = 64
"""A payload that is larger lies beside the queue."""


def _settings() -> QueueSettings:
    return QueueSettings(
        payload_max=PAYLOAD_MAX,
        stale_timeout=timedelta(seconds=6),
        max_attempts=6,
        backoff_base=timedelta(milliseconds=200),
        backoff_cap=timedelta(seconds=4),
        conflict_retries=1,
        storage_patience=timedelta(seconds=2),
        poll_min=timedelta(milliseconds=100),
        poll_max=timedelta(seconds=2),
        drain_limit=timedelta(seconds=5),
        retention=timedelta(seconds=1),
        archive_interval=timedelta(seconds=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Rates are chances per request, or mean seconds between two such events on one node (0: never)."""

    name: str
    nodes: int = 3
    lease_s: float = 6.0
    latency_s: tuple[float, float] = (0.002, 0.04)
    timeout_s: tuple[float, float] = (0.2, 1.5)
    nap_s: tuple[float, float] | None = None
    """How long leaders doze off for, and nobody else; None: everybody does, from a moment to well over a lease."""
    late_s: float = 20.0
    """How late a delayed write may still land."""
    writes: Mapping[Fault, float] = field(default_factory=dict)
    reads: Mapping[Fault, float] = field(default_factory=dict)
    crash_in_write: float = 0.0
    cuts: float = 0.0
    """The chance that a message between processes finds its connection cut."""
    every_s: Mapping[Fault, float] = field(default_factory=dict)
    skew_s: float = 0.0
    """How far apart wall clocks may be set."""
    drift: float = 0.0
    """By what share clocks may run fast or slow."""
    grain_ms: int = 1
    """Wall clocks show multiples of this."""
    urgent: bool = False
    """Whether every job is more urgent than most of those before it."""
    one_customer: bool = False
    """Whether most jobs are of one zone and two entrypoints."""
    startled: bool = True
    """Whether callers leave in the very rounds of the event loop in which their answer is on its way to them."""
    worker_lease_s: float = 0.0
    """The leases of a real worker that runs in each process (0: there is none)."""
    drain_s: float = 0.5
    """How long its jobs may take when its process is stopped cleanly."""
    full: bool = False
    """Whether a write that is refused is refused for want of room."""
    keyed: float = 0.15
    """The share of jobs that have a unique key."""
    large: float = 0.1
    """The share of jobs whose payload lies beside the queue."""
    fleeting: float = 0.0
    """The share of jobs that expire after some seconds."""
    unread: float = 0.0
    """The chance that such a payload cannot be read."""
    curious: int = 0
    """How many there are in each process who look at the queue all the time."""
    insistent: bool = False
    """Whether most requests are asked again, as it is on rings."""
    operators: int = 1
    """How many there are in each process who cancel, retry and purge jobs."""
    leisure: float = 1.0
    """By how much everybody takes longer to think than usual."""
    looked_back: int = 20
    """From how many commits ago tenants read their events: mostly those are gone by then."""
    strict: bool = False
    """Whether half of the batches that are admitted are of FIFO zones."""
    hedged: bool = False
    """Whether some who admit send their batch twice at the same time, through two queues."""
    holders: int = 0
    """How many there are in each process of a ring who lease a zone, empty it, and have jobs admitted to it."""
    keepers: bool = False
    """Whether clocks that are days ahead decide what is deleted from the archive."""
    settlers: bool = False
    """Whether somebody empties a zone of a ring whenever that is resized, and repeats what was asked before."""
    switchers: bool = False
    """Whether one process pauses and opens an entrypoint all the time, while the others resize the ring."""
    heirs: int = 0
    """How many names of jobs pass from one tenant to another at a time, in each process."""
    settings: QueueSettings = field(default_factory=_settings)

    @property
    def recovery_s(self) -> float:
        """Within this time after the last fault there must be nothing left to do."""
        steps_s = 2 * STEP_S if Fault.CLOCK_STEP in self.every_s else 0.0
        return 4 * self.lease_s + 2 * self.skew_s + steps_s + 30


CALM = Profile(name="calm", skew_s=0.5, every_s={Fault.CLOSE: 40.0})
ROUGH = Profile(
    name="rough",
    writes={
        Fault.BEFORE: 0.02,
        Fault.AFTER: 0.03,
        Fault.DELAYED: 0.02,
        Fault.DUPLICATED: 0.03,
        Fault.HIDDEN: 0.02,
        Fault.THROTTLED: 0.02,
        Fault.SLOW: 0.03,
    },
    reads={Fault.READ_FAILED: 0.02, Fault.READ_SLOW: 0.03},
    crash_in_write=0.01,
    cuts=0.01,
    every_s={
        Fault.CRASH: 25.0,
        Fault.CLOSE: 40.0,
        Fault.PAUSE: 25.0,
        Fault.SLEEP: 40.0,
        Fault.PARTITION: 30.0,
        Fault.OUTAGE: 30.0,
        Fault.CLOCK_JUMP: 20.0,
    },
    skew_s=5.0,
    drift=0.05,
)
BRUTAL = Profile(
    name="brutal",
    nodes=4,
    writes={
        Fault.BEFORE: 0.08,
        Fault.AFTER: 0.08,
        Fault.DELAYED: 0.08,
        Fault.DUPLICATED: 0.06,
        Fault.HIDDEN: 0.05,
        Fault.THROTTLED: 0.08,
        Fault.SLOW: 0.06,
    },
    reads={Fault.READ_FAILED: 0.1, Fault.READ_SLOW: 0.08},
    crash_in_write=0.03,
    cuts=0.03,
    every_s={
        Fault.CRASH: 10.0,
        Fault.CLOSE: 25.0,
        Fault.PAUSE: 12.0,
        Fault.SLEEP: 20.0,
        Fault.PARTITION: 12.0,
        Fault.OUTAGE: 12.0,
        Fault.CLOCK_JUMP: 6.0,
    },
    skew_s=20.0,
    drift=0.1,
)
DISK = Profile(
    name="disk",
    writes={Fault.UNSYNCED: 0.15, Fault.THROTTLED: 0.05},
    reads={Fault.READ_FAILED: 0.02},
    crash_in_write=0.01,
    every_s={Fault.POWER: 40.0, Fault.CRASH: 30.0, Fault.OUTAGE: 40.0, Fault.CLOSE: 40.0},
    skew_s=1.0,
)
"""Local files on a disk that fails to sync, in a machine whose power fails. Half of the later syncs fail, too."""
ROLLING = replace(CALM, name="rolling", every_s={Fault.CLOSE: 4.0})
"""Nothing goes wrong, but processes are stopped cleanly and started again all the time."""
STEPS = replace(CALM, name="steps", every_s={Fault.CLOCK_STEP: 3.0, Fault.CRASH: 10.0})
FLEETING = replace(ROUGH, name="fleeting", fleeting=0.5)
"""Half of the jobs expire after some seconds, by clocks that differ by as much."""
PROFILES = {profile.name: profile for profile in (CALM, ROUGH, BRUTAL, DISK, ROLLING, STEPS, FLEETING)}
