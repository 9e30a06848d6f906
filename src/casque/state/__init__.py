"""The rules of the queue, and nothing else.

Commands go in together with the time; events and answers come out. Nothing here reads a clock, draws a random
number, waits, or touches bytes: the caller decides all of that, so the same commands give the same state
everywhere. A refused command changes nothing. A batch that lost its race is undone with `rollback`.

Events are what gets written and replayed. Applying one makes no choices, so an old history replays under new rules.

`machine` dispatches, commits and rolls back. What a queue keeps is in its facets, a module each, listed in `facets`:
`schedules`, `gates`, `zone_rules`, `zone_leases`, `sources`, `staged`, `writers`, `shard`, `vigils`, `answers`,
`finished`, and `job_table` with the order of the jobs in `ready`, `lane` and `fair`. `job_life` is what events do to a
job; `adding`, `claiming`, `settling`, `leases` and `interventions` are the requests about jobs.
"""

from __future__ import annotations

from casque.state.commands import (
    Admit,
    AdoptRing,
    Command,
    Expire,
    Lapse,
    Observed,
    ObservedZone,
    PauseSchedule,
    ReturnUnseen,
    SetSchedule,
    Tick,
    Watch,
    Watching,
)
from casque.state.events import (
    Acked,
    Added,
    Admitted,
    Advanced,
    Beaten,
    Cancelled,
    Claimed,
    Crashed,
    Declined,
    Died,
    Event,
    Expired,
    Gated,
    Lapsed,
    Nacked,
    Purged,
    Quarantined,
    Remembered,
    Returned,
    Revived,
    Ringed,
    Scheduled,
    Snoozed,
    Ticked,
    Unscheduled,
    Watched,
    Withdrawn,
    ZoneBeaten,
    Zoned,
    ZoneExpired,
    ZoneLeased,
    ZoneReleased,
)
from casque.state.job_table import Counters
from casque.state.limits import Limits
from casque.state.machine import State
from casque.state.ring import RingView

__all__ = [
    "Acked",
    "Added",
    "Admit",
    "Admitted",
    "AdoptRing",
    "Advanced",
    "Beaten",
    "Cancelled",
    "Claimed",
    "Command",
    "Counters",
    "Crashed",
    "Declined",
    "Died",
    "Event",
    "Expire",
    "Expired",
    "Gated",
    "Lapse",
    "Lapsed",
    "Limits",
    "Nacked",
    "Observed",
    "ObservedZone",
    "PauseSchedule",
    "Purged",
    "Quarantined",
    "Remembered",
    "ReturnUnseen",
    "Returned",
    "Revived",
    "RingView",
    "Ringed",
    "Scheduled",
    "SetSchedule",
    "Snoozed",
    "State",
    "Tick",
    "Ticked",
    "Unscheduled",
    "Watch",
    "Watched",
    "Watching",
    "Withdrawn",
    "ZoneBeaten",
    "ZoneExpired",
    "ZoneLeased",
    "ZoneReleased",
    "Zoned",
]
