"""The text that an attempt keeps of its error."""

from __future__ import annotations

import traceback

from casque import checks

FRAMES_MAX = 8
"""Innermost frames of a traceback that are kept."""


def described(error: BaseException, *, caller: str) -> str:
    """Class and message first, then the innermost frames of the traceback, without those of `caller`, the file that
    called the handler."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != caller] or frames
    where = "".join(traceback.format_list(own[-FRAMES_MAX:])).rstrip()
    said = f"{type(error).__name__}: {error}"
    return str(checks.error_text(f"{said}\n{where}" if where else said))
