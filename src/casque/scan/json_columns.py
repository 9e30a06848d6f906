"""Lines of JSON as Arrow columns: similar lines all at once, the others parsed by Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from casque.scan.base64 import decoded, decoded_sizes
from casque.scan.even_lines import EvenLines, Lines
from casque.scan.event_columns import column
from casque.scan.tables import arrow_type


class _Headers(msgspec.Struct):
    headers: dict[str, str] | None = None


_headers_decoder = msgspec.json.Decoder(_Headers)


class JsonColumns:
    """The fields of many lines. A field that a line omits is null.

    Raises:
        ValueError: invalid JSON, or not of this form.
    """

    def __init__(self, body: bytes | Lines, fields: Mapping[str, Any]) -> None:
        """Pre-split lines raise instead of falling back to Arrow."""
        if isinstance(body, Lines):
            self._take_apart(body, fields)
            return
        try:
            self._take_apart(Lines(body), fields)
        except ValueError:  # Arrow's parser reports what is wrong, if anything is
            self._parse_all(body, fields)

    def _take_apart(self, lines: Lines, fields: Mapping[str, Any]) -> None:
        if not len(lines):
            raise ValueError("nothing is there")
        even = EvenLines(lines)
        self.rows = len(lines)
        self._odd: Any = even.odd
        self._parsed = b""
        """The text of the lines that Arrow parsed."""
        if not len(even.odd):
            self._fields = {name: even.column(name, kind) for name, kind in fields.items()}
            return
        self._parsed = lines.joined(even.odd)
        parsed = _parsed(self._parsed, fields)
        if parsed.num_rows != len(even.odd):
            raise ValueError("a line that is not one object")
        order = np.arange(self.rows)
        order[even.odd] = self.rows + np.arange(len(even.odd))
        self._fields = {
            name: pa.concat_arrays([even.column(name, kind), _whole(parsed[name])]).take(pa.array(order))
            for name, kind in fields.items()
        }

    def _parse_all(self, body: bytes, fields: Mapping[str, Any]) -> None:
        parsed = _parsed(body, fields)
        self._fields = {name: _whole(parsed[name]) for name in fields}
        self.rows = parsed.num_rows
        self._odd = np.arange(self.rows)
        self._parsed = body

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def bytes_of(self, name: str) -> Any:
        """A field of base64, decoded."""
        return decoded(self._fields[name])

    def payload(self, elsewhere: Any) -> Any:
        """Payloads; null where the payload is stored elsewhere, which is different from an empty one."""
        payload = self.bytes_of("payload")
        if not pc.any(elsewhere).as_py():
            return payload
        return pc.if_else(elsewhere, pa.scalar(None, pa.binary()), payload)

    def payload_bytes(self, elsewhere: Any) -> Any:
        sizes = decoded_sizes(self._fields["payload"])
        if not pc.any(elsewhere).as_py():
            return sizes
        return pc.if_else(elsewhere, self._fields["blob_bytes"], sizes)

    def headers(self) -> Any:
        """Decoded separately where there are any: Arrow cannot parse JSON maps."""
        wanted = arrow_type("map<string,string>")
        if b'"headers":' not in self._parsed:
            return pa.nulls(self.rows, wanted)
        found = column([line.headers for line in _headers_decoder.decode_lines(self._parsed)], wanted)
        places, absent = np.zeros(self.rows, np.int64), np.ones(self.rows, bool)
        places[self._odd], absent[self._odd] = np.arange(len(self._odd)), False
        return found.take(pa.array(places, mask=absent))


def _parsed(body: bytes, fields: Mapping[str, Any]) -> Any:
    return pj.read_json(
        pa.BufferReader(body),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(body) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="ignore"
        ),
    )


def _whole(chunked: Any) -> Any:
    """Arrow parsed one block, so there is at most one chunk."""
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
