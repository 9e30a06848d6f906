"""How long a leader may trust its state in memory."""

from __future__ import annotations


def surely_leads(unconfirmed_ms: int, *, lease_ms: int) -> bool:
    """True if a leader last confirmed `unconfirmed_ms` ago certainly still leads, so that no other process can have
    committed since.

    Others take over after a whole lease without a heartbeat: half of it leaves room for clocks that differ.
    """
    return unconfirmed_ms < lease_ms / 2
