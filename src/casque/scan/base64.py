"""Decode a column of base64 to a column of bytes, all rows at once."""

from __future__ import annotations

import binascii
from typing import Any

import numpy as np
import pyarrow as pa

_PADDING, _ZERO = b"=A"


def decoded(text: Any) -> Any:
    """`text` is an array of strings, each of them padded base64, the JSON form of bytes.

    Every string has a multiple of four characters, so all of them can be decoded as one: the padding as zeros, which
    are then left out.

    Raises:
        ValueError: it is not padded base64.
    """
    rows = len(text)
    column = _Column(text)
    if not len(column.raw):
        return text.cast(pa.binary())
    whole = _bytes(column)
    # Offsets alternate: end of a value, start of the next. So the padding between two values is a value as well, and
    # every other one is taken.
    places = np.zeros(2 * rows + 1, np.int32)
    places[2::2] = column.offsets[1:] // 4 * 3
    places[1::2] = places[2::2] - column.padding
    every = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(places), pa.py_buffer(whole)])
    absent = text.is_null().to_numpy(zero_copy_only=False) if text.null_count else None
    return every.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=absent))


def _bytes(column: _Column) -> bytes:
    unpadded: Any = column.raw.copy()
    ends = column.offsets[1:]
    unpadded[ends[column.padding >= 1] - 1] = _ZERO
    unpadded[ends[column.padding == 2] - 2] = _ZERO
    try:
        whole = binascii.a2b_base64(unpadded)
    except binascii.Error as error:
        raise ValueError(f"this is no base64: {error}") from error
    if len(whole) * 4 != len(unpadded) * 3:  # the decoder skips other characters
        raise ValueError("this is no base64")
    return whole


def decoded_sizes(text: Any) -> Any:
    """The decoded size of each value in bytes."""
    column = _Column(text)
    sizes = np.diff(column.offsets).astype(np.int64) // 4 * 3 - column.padding
    absent = text.is_null().to_numpy(zero_copy_only=False) if text.null_count else None
    return pa.array(sizes, pa.int64(), mask=absent)


class _Column:
    """The buffers of an array of strings."""

    def __init__(self, text: Any) -> None:
        rows = len(text)
        _, offsets, data = text.buffers()
        if data is None or not rows:
            self.raw = np.zeros(0, np.uint8)
            self.offsets, self.padding = np.zeros(rows + 1, np.int32), np.zeros(rows, np.int32)
            return
        offsets = np.frombuffer(offsets, np.int32, rows + 1, 4 * text.offset)
        begin, end = int(offsets[0]), int(offsets[-1])
        self.raw = np.frombuffer(data, np.uint8)[begin:end]
        self.offsets = offsets - begin
        if (self.offsets % 4).any():
            raise ValueError("this is no base64")
        self.padding = _padding(self.raw, np.diff(self.offsets), self.offsets[1:])


def _padding(raw: Any, lengths: Any, ends: Any) -> Any:
    padding = np.zeros(len(lengths), np.int32)
    some = lengths > 0
    last = ends[some]
    padding[some] = (raw[last - 1] == _PADDING).astype(np.int32) + (raw[last - 2] == _PADDING)
    return padding
