"""Parse many similar lines of JSON at once.

A program that writes many objects of one kind writes the same keys in the same order, so every line has the same text
between its values. Comparing that text and finding the quotes is enough to locate each value. This handles only flat
objects without escapes, and only if every byte is accounted for; all other lines are left to a parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

SHAPES_MAX = 16
"""Number of shapes to look for. Further lines are left to the parser, which is as quick with them."""
BODY_MAX = 2**31 - 1
"""Offsets of values are 32-bit."""
_DIGITS_MAX = 18
"""A number of this many digits is below 2 ** 63."""
_PAIR = re.compile(rb'"([^"\\]*)":(?:("[^"\\]*")|(0|[1-9][0-9]{0,17})|(true|false|null))([,}])')
_LITERALS = {b"true": True, b"false": False, b"null": None}
_NEWLINE, _BLANK, _QUOTE, _ESCAPE, _ZERO = b'\n "\\0'


class Lines:
    """The lines of a text, without their separators."""

    def __init__(self, body: bytes, *, between: bytes = b"\n") -> None:
        """
        Raises:
            ValueError: a separator is wrong, or a line has a character that JSON does not allow.
        """
        assert between[-1:] == b"\n"
        if len(body) > BODY_MAX:
            raise ValueError("too long")
        if not body.isascii():
            body.decode()  # raises a ValueError
        self.body = body
        self.bytes = np.frombuffer(body, np.uint8)
        ends = np.flatnonzero(self.bytes < _BLANK)
        if (self.bytes[ends] != _NEWLINE).any():
            raise ValueError("a character that JSON does not allow")
        if body and body[-1] != _NEWLINE:
            ends = np.append(ends, len(body))
        self.begins = np.zeros_like(ends)
        self.begins[1:] = ends[:-1] + 1
        for place, byte in enumerate(reversed(between[:-1]), 1):
            if (self.bytes[ends[:-1] - place] != byte).any():
                raise ValueError("something else stands between two lines")
        ends[:-1] -= len(between) - 1
        self.ends = ends

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, row: Any) -> bytes:
        return self.body[self.begins[row] : self.ends[row]]

    def joined(self, rows: Iterable[Any]) -> bytes:
        """Only these lines."""
        return b"\n".join([self[row] for row in rows])


class Shape(NamedTuple):
    """The constant text of a line, without its values."""

    around: list[bytes]
    """The text before each value, and after the last."""
    names: list[str]
    quoted: list[bool]
    """True for strings, False for numbers."""
    literals: dict[str, bool | None]
    """Values that are part of the shape itself: true, false and null."""


def shape_of(line: bytes) -> Shape | None:
    """None if a line is nested, or has an escape, a duplicate key, or a number that is not an integer."""
    shape = Shape([], [], [], {})
    text, at, end = b"{", 1, b","
    while end == b"," and line[:1] == b"{" and (pair := _PAIR.match(line, at)) is not None:
        key, _, number, literal, end = pair.groups()
        name, at = key.decode(errors="replace"), pair.end()
        if name in shape.names or name in shape.literals:
            return None
        text += b'"%b":' % key
        if literal is not None:
            shape.literals[name] = _LITERALS[literal]
            text += literal + end
            continue
        mark = b'"' if number is None else b""
        shape.around.append(text + mark)
        shape.names.append(name)
        shape.quoted.append(number is None)
        text = mark + end
    if end != b"}" or at != len(line):
        return None
    shape.around.append(text)
    return shape


class _Alike:
    """Lines of one shape.

    `edges` has a row for each line: where it begins, where each of its values begins and ends, and where it ends. These
    offsets are in order, so they divide the text into strings: every other one is a value, except the text between the
    last value of a line and the first of the next.
    """

    def __init__(self, body: bytes, rows: Any, shape: Shape, edges: Any) -> None:
        self.rows = rows
        self.shape = shape
        self.edges = edges
        self._each = edges.shape[1]
        offsets = pa.py_buffer(np.ascontiguousarray(edges))
        self._strings = pa.Array.from_buffers(pa.string(), edges.size - 1, [None, offsets, pa.py_buffer(body)])
        self._places = {name: 2 * place + 1 for place, name in enumerate(shape.names)}

    def kept(self, body: bytes, fits: Any) -> _Alike:
        """A subset of these lines."""
        return self if fits.all() else _Alike(body, self.rows[fits], self.shape, self.edges[fits])

    def has(self, name: str, *, quoted: bool) -> bool:
        """True if there are values of this name.

        Raises:
            ValueError: they have another type.
        """
        if name not in self._places:
            if self.shape.literals.get(name) is not None:
                raise ValueError(f"{name} is true or false")
            return False
        if self.shape.quoted[self._places[name] // 2] is not quoted:
            raise ValueError(f"{name} is {'no' if quoted else 'a'} string")
        return True

    def spans(self, name: str) -> tuple[Any, Any]:
        """Start and end offsets of the values."""
        place = self._places[name]
        return self.edges[:, place], self.edges[:, place + 1]

    def values(self, name: str) -> Any:
        return self._taken(self._places[name])

    def around(self) -> bytes:
        """All text outside the values."""
        return bytes(self._taken(0, 2).buffers()[2])

    def _taken(self, place: int, step: int | None = None) -> Any:
        return self._strings.take(pa.array(np.arange(place, self.edges.size, step or self._each, dtype=np.int32)))


class EvenLines:
    """The lines that have one of a few shapes; `odd` are the rows of the others."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._found: list[_Alike] = []
        quotes = np.flatnonzero(lines.bytes == _QUOTE).astype(np.int32)
        first = _first_quotes(lines, quotes)
        counts = np.diff(first, append=len(quotes))
        left = np.ones(len(lines), bool)
        left[_escaped(lines)] = False
        odd = ~left
        for _ in range(SHAPES_MAX):
            if not left.any():
                break
            # The most common first: the last ones may be left over.
            common = int(np.bincount(counts[left]).argmax())
            rows = np.flatnonzero(left & (counts == common))
            shape = shape_of(lines[rows[0]])
            if shape is None:  # most lines with as many quotes have the same shape
                odd[rows], left[rows] = True, False
                continue
            found = _fitting(lines, shape, rows, _of_rows(quotes, first, rows, common))
            self._found.append(found)
            left[found.rows] = False
        self.odd = np.flatnonzero(odd | left)

    def column(self, name: str, kind: Any) -> Any:
        """The values of this name, as an Arrow array. Null where a line lacks it, and for odd lines.

        Raises:
            ValueError: a value has another type.
        """
        if pa.types.is_boolean(kind):
            return self._words(name)
        having = [found for found in self._found if found.has(name, quoted=not pa.types.is_integer(kind))]
        if not having:
            return pa.nulls(len(self._lines), kind)
        if pa.types.is_nested(kind):
            raise ValueError(f"{name} is not {kind}")
        return self._values(name, having).cast(kind)

    def _values(self, name: str, having: Sequence[_Alike]) -> Any:
        lines, rows = self._lines, len(self._lines)
        if len(having[0].rows) == rows:
            return having[0].values(name)
        begins, absent = lines.begins.astype(np.int32), np.ones(rows, bool)
        ends = begins.copy()
        for found in having:
            begins[found.rows], ends[found.rows] = found.spans(name)
            absent[found.rows] = False
        places = np.empty(2 * rows + 1, np.int32)
        places[0:-1:2], places[1::2], places[-1] = begins, ends, ends[-1]
        every = pa.Array.from_buffers(pa.string(), 2 * rows, [None, pa.py_buffer(places), pa.py_buffer(lines.body)])
        return every.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=absent))

    def _words(self, name: str) -> Any:
        values, absent = np.zeros(len(self._lines), bool), np.ones(len(self._lines), bool)
        for found in self._found:
            if (literal := found.shape.literals.get(name)) is not None:
                values[found.rows], absent[found.rows] = literal, False
            elif found.has(name, quoted=True):
                raise ValueError(f"{name} is neither true nor false")
        return pa.array(values, mask=absent)


def _first_quotes(lines: Lines, quotes: Any) -> Any:
    """The index of each line's first quote."""
    each, over = divmod(len(quotes), max(len(lines), 1))
    if each and not over:  # usually all lines have the same number
        of_line = quotes.reshape(-1, each)
        if (of_line[:, 0] >= lines.begins).all() and (of_line[:, -1] < lines.ends).all():
            return np.arange(0, len(quotes), each)
    return np.searchsorted(quotes, lines.begins)


def _of_rows(quotes: Any, first: Any, rows: Any, each: int) -> Any:
    """The quotes of these lines, `each` per line."""
    if len(rows) * each == len(quotes):
        return quotes.reshape(-1, each)
    return quotes[first[rows][:, None] + np.arange(each)]


def _escaped(lines: Lines) -> Any:
    """The rows of lines that contain escapes."""
    if b"\\" not in lines.body:
        return np.zeros(0, np.int64)
    return np.searchsorted(lines.begins, np.flatnonzero(lines.bytes == _ESCAPE), side="right") - 1


def _fitting(lines: Lines, shape: Shape, rows: Any, quotes: Any) -> _Alike:
    """The rows that have this shape. All of them have the same number of quotes."""
    edges = np.empty((len(rows), 2 * len(shape.around)), np.int32)
    edges[:, 0], edges[:, -1] = lines.begins[rows], lines.ends[rows]
    seen, fits = 0, np.ones(len(rows), bool)
    for place, (text, after) in enumerate(pairwise(shape.around)):
        seen += text.count(b'"')
        begins, ends = edges[:, 2 * place + 1], edges[:, 2 * place + 2]
        begins[:] = quotes[:, seen - 1] + (len(text) - text.rindex(b'"'))
        if shape.quoted[place]:
            ends[:] = quotes[:, seen]
        else:
            # A comma stands between the number and the next quote, or it is the last value and the line ends after it.
            ends[:] = (quotes[:, seen] if b'"' in after else edges[:, -1]) - 1
            fits &= (ends - begins >= 1) & (ends - begins <= _DIGITS_MAX)
    sizes = np.array([len(text) for text in shape.around], np.int32)
    fits &= (edges[:, 1::2] - edges[:, 0::2] == sizes).all(axis=1)
    if not fits.all():
        rows, edges = rows[fits], edges[fits]
    found = _Alike(lines.body, rows, shape, edges)
    found = found.kept(lines.body, _same(found.around(), b"".join(shape.around), len(found.rows)))
    for name, quoted in zip(shape.names, shape.quoted, strict=True):
        if not quoted:
            found = found.kept(lines.body, _numbers(found.values(name)))
    return found


def _same(found: bytes, text: bytes, rows: int) -> Any:
    """Mask of the rows whose text equals `text`."""
    if found == text * rows:
        return np.ones(rows, bool)
    return (np.frombuffer(found, np.uint8).reshape(rows, len(text)) == np.frombuffer(text, np.uint8)).all(axis=1)


def _numbers(texts: Any) -> Any:
    """Mask of the valid integers: digits without a leading zero. No text is empty."""
    rows = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], np.int32, rows + 1)
    digits = np.frombuffer(texts.buffers()[2], np.uint8, int(offsets[-1])) - np.uint8(_ZERO)
    whole = (np.diff(offsets) == 1) | (digits[offsets[:-1]] != 0)
    if (others := digits > 9).any():
        whole[np.repeat(np.arange(rows), np.diff(offsets))[others]] = False
    return whole
