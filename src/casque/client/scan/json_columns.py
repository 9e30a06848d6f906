"""Lines of JSON as columns of Arrow, parsed by Arrow itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from casque.client.scan.base64 import decoded
from casque.client.scan.event_columns import column
from casque.client.scan.tables import arrow_type


class _Headers(msgspec.Struct):
    headers: dict[str, str] | None = None


_headers_decoder = msgspec.json.Decoder(_Headers)


class JsonColumns:
    """The fields of many lines. What a line leaves out is null.

    Raises:
        ValueError: that is no JSON, or not of this form.
    """

    def __init__(self, body: bytes, fields: Mapping[str, Any]) -> None:
        self._body = body
        parsed = pj.read_json(
            pa.BufferReader(body),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(body) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="ignore"
            ),
        )
        self._fields = {name: _whole(parsed[name]) for name in fields}
        self.rows = parsed.num_rows

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def bytes_of(self, name: str) -> Any:
        """A field of base64."""
        return decoded(self._fields[name])

    def payload(self, elsewhere: Any) -> Any:
        """Payloads, but for those that lie elsewhere: such a one is not an empty one."""
        payload = self.bytes_of("payload")
        if not pc.any(elsewhere).as_py():
            return payload
        return pc.if_else(elsewhere, pa.scalar(None, pa.binary()), payload)

    def payload_bytes(self, elsewhere: Any) -> Any:
        text = self._fields["payload"]
        whole = pc.multiply(pc.divide(pc.binary_length(text), 4), 3)
        sizes = pc.subtract(whole, pc.count_substring(text, "=")).cast(pa.int64())
        return pc.if_else(elsewhere, self._fields["blob_bytes"], sizes)

    def headers(self) -> Any:
        """Arrow has no JSON of a map: decoded beside it, where there are any."""
        wanted = arrow_type("map<string,string>")
        if b'"headers":' not in self._body:
            return pa.nulls(self.rows, wanted)
        return column([line.headers for line in _headers_decoder.decode_lines(self._body)], wanted)


def _whole(chunked: Any) -> Any:
    """One block was parsed, so there is one chunk, or none at all."""
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
