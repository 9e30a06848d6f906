"""Text that is safe to show: what came from others cannot move a cursor, change a colour, or forge a line.

Payloads, errors, headers, names and what stores say end up in terminals and logs. Control characters (C0, C1, DEL, and
with them every escape sequence), separators of lines and paragraphs, invisible characters, and those that turn the
direction of writing are shown as escapes, such as `\\x1b`. JSON has its own, which mean the same to every reader.
"""

from __future__ import annotations

import re

_INVISIBLE = "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
_INVISIBLE += "\U000e0000-\U000e007f"
_IN_A_LINE = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_IN_JSON = re.compile(f"[{_INVISIBLE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The same on one line.

    >>> printable("gone\\x1b[2J\\nFATAL: forged")
    'gone\\\\x1b[2J\\\\nFATAL: forged'
    """
    return text if text.isprintable() else _IN_A_LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same, with its line ends and tabs."""
    return text if text.isprintable() else _IN_LINES.sub(_escaped, text)


def printable_json(encoded: bytes) -> str:
    """JSON that reads as the same values: only in its strings are there characters that have to be escaped.

    >>> printable_json('"\\u202e"'.encode())
    '"\\\\u202e"'
    """
    text = encoded.decode()
    return text if text.isprintable() else _IN_JSON.sub(_escaped_in_json, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    if number < 0x100:
        return _SHORT.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
