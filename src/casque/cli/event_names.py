"""What people call the events of a queue. The stored names, which programs read, are in `casque.service.EventKind`."""

from __future__ import annotations

import difflib

from casque.errors import InvalidInputError
from casque.service import EventKind

SHOWN = {
    EventKind.BEATEN: "heartbeat",
    EventKind.ADVANCED: "progress",
    EventKind.REVIVED: "retried",
    EventKind.GATED: "gate-set",
    EventKind.ZONED: "zone-set",
    EventKind.ZONE_LEASED: "zone-leased",
    EventKind.ZONE_BEATEN: "zone-heartbeat",
    EventKind.ZONE_RELEASED: "zone-released",
    EventKind.ZONE_EXPIRED: "zone-expired",
    EventKind.RINGED: "ring-changed",
    EventKind.TICKED: "tick",
}
"""Kinds whose stored name is not the one that people read; `--kind` takes both."""


def shown_name(kind: EventKind) -> str:
    return SHOWN.get(kind, kind.value)


def parse_kind(text: str) -> EventKind:
    """The kind of this name, shown or stored. Raises InvalidInputError."""
    names = {**{kind.value: kind for kind in EventKind}, **{shown_name(kind): kind for kind in EventKind}}
    if text in names:
        return names[text]
    near = difflib.get_close_matches(text, [shown_name(kind) for kind in EventKind], n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(map(shown_name, EventKind))}"
    raise InvalidInputError(f"--kind: there is no event {text!r}; {hint}")


def complete_kinds(incomplete: str) -> list[str]:
    """For shells that complete `--kind`."""
    return [name for name in map(shown_name, EventKind) if name.startswith(incomplete)]
