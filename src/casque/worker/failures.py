"""What is kept of an error with the attempt that it ended."""

from __future__ import annotations

import traceback

from casque import checks

FRAMES_MAX = 8
"""Innermost frames of a traceback that are kept."""


def described(error: BaseException, *, caller: str) -> str:
    """Its class and message first, then where it came from: the innermost frames, but for those of the file that called
    the handler."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != caller] or frames
    where = "".join(traceback.format_list(own[-FRAMES_MAX:])).rstrip()
    said = f"{type(error).__name__}: {error}"
    return str(checks.error_text(f"{said}\n{where}" if where else said))
