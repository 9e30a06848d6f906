"""How long a leader may trust its memory."""

from __future__ import annotations


def is_sure(unconfirmed_ms: int, *, lease_ms: int) -> bool:
    """Whether a leader that was confirmed so long ago surely is one still: nobody else can have committed since.

    Others take over after a whole lease without a sign of life: half of it leaves room for clocks that differ.
    """
    return unconfirmed_ms < lease_ms / 2
