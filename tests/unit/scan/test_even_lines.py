"""Lines that look alike are taken apart all at once, and say what a parser says they say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque.scan.base64 import decoded
from casque.scan.even_lines import EvenLines, Lines, shape_of
from casque.scan.json_columns import JsonColumns

FIELDS = {
    "id": pa.string(),
    "attempts": pa.int32(),
    "position": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "waiting": pa.bool_(),
    "tries": pa.list_(pa.struct([("how", pa.string())])),
}
TIMES = st.integers(0, 2**41).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
TEXTS = st.text(max_size=8) | st.sampled_from(['","', '":', "],[", "},", "\\", "\n", "ä", '{"id":"x"}', "007"])
LINES = st.fixed_dictionaries(
    {"id": TEXTS},
    optional={
        "attempts": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 30),
        "position": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**6) | st.none(),
        "unknown": TEXTS | st.integers() | st.booleans() | st.lists(TEXTS, max_size=2) | st.floats(0, 9),
        "at": TIMES.map(lambda time: time.isoformat().replace("+00:00", "Z")),
        "waiting": st.booleans() | st.none(),
        "tries": st.lists(st.fixed_dictionaries({"how": TEXTS}), max_size=2),
        "headers": st.dictionaries(st.text(max_size=3), TEXTS, min_size=1, max_size=2),
    },
)


def parsed(body: bytes) -> Any:
    options = pj.ParseOptions(explicit_schema=pa.schema(list(FIELDS.items())), unexpected_field_behavior="ignore")
    return pj.read_json(pa.BufferReader(body), parse_options=options).select(list(FIELDS)).combine_chunks()


def written(rows: list[dict[str, Any]], between: str = "\n") -> bytes:
    return between.join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows).encode()


def even(body: bytes) -> EvenLines:
    return EvenLines(Lines(body))


@settings(deadline=None, database=None)
@given(st.lists(LINES, min_size=1, max_size=30), st.sampled_from(["\n", ",\n"]))
def test_lines_say_what_a_parser_says_they_say(rows: list[dict[str, Any]], between: str) -> None:
    found = JsonColumns(Lines(written(rows, between), between=between.encode()), FIELDS)
    assert pa.table({name: found[name] for name in FIELDS}).equals(parsed(written(rows)))
    assert found.headers().to_pylist() == [
        list(row["headers"].items()) if row.get("headers") is not None else None for row in rows
    ]


def test_lines_of_a_few_shapes_are_all_even() -> None:
    rows = [{"id": f"job-{n}", "attempts": n, **({"at": "2026-02-15T10:00:00Z"} if n % 3 else {})} for n in range(99)]
    assert list(even(written(rows)).odd) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":"a","attempts":01}',
        b'{"id":"a","attempts":1.0}',
        b'{"id":"a","attempts":-}',
        b'{"id":"a","attempts":0x1}',
        b'{"id":"a","attempts":}',
        b'{"id":"a","attempts":1 }',
        b'{"id":"a","attempts":1},',
        b'{"id":"a";"attempts":1}',
        b'{"id":"\\u0061","attempts":1}',
        b'{"id":{"x":1}}',
        b"{}",
        b"",
    ],
)
def test_a_line_that_only_looks_like_the_others_is_left_to_the_parser(line: bytes) -> None:
    usual = b'{"id":"a","attempts":1}'
    assert list(even(b"\n".join([usual, usual, line, usual])).odd) == [2]


@pytest.mark.parametrize(
    "line", [b'{"id":7}', b'{"id":true}', b'{"id":"a","attempts":"7"}', b'{"id":"a","attempts":9999999999}', b'{"id":"']
)
def test_what_a_parser_refuses_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        JsonColumns(b'{"id":"a","attempts":1}\n' + line + b"\n", FIELDS)


def test_a_character_that_json_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        JsonColumns(b'{"id":"a\tb"}\n{"id":"c"}\n', FIELDS)


def test_a_key_that_comes_twice_has_no_shape() -> None:
    assert shape_of(b'{"id":"a","id":"b"}') is None


@pytest.mark.parametrize("text", ["abc", "ab!d", "a===", "====ab==", "YQ==YQ=="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        decoded(pa.array(["YQ==", text]))
