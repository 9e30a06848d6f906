"""`casque bench` on real files: it measures, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.shell import casque, lines_of

pytestmark = pytest.mark.usefixtures("nothing_around")


def test_bench_measures_a_bucket_and_leaves_nothing_behind(tmp_path: Path) -> None:
    kept = tmp_path / "store" / "queue.json"
    kept.parent.mkdir()
    kept.write_text("somebody's own")
    url = kept.parent.as_uri()
    [measured] = lines_of(casque("bench", url, "--seconds", "0.05", "--callers", "3", "--payload", "7", "--json"))
    rows = {row["what"]: row for row in measured["rows"]}
    assert rows.keys() == {
        "enqueue, 1 caller",
        "enqueue, 3 callers",
        "enqueue 1,000 at once",
        "claim and settle, 1,000 at once",
        "enqueue, claim, ack, 3 callers",
        "idle start",
    }
    enqueued = sum(row["jobs"] for what, row in rows.items() if what.startswith("enqueue") and "claim" not in what)
    assert rows["claim and settle, 1,000 at once"]["jobs"] == enqueued
    assert all(row["jobs_per_s"] > 0 for row in rows.values())
    assert rows["enqueue, 1 caller"]["puts"] >= rows["enqueue, 1 caller"]["jobs"], "each is a commit of its own"
    assert measured["leftover"] is None
    assert [path for path in kept.parent.iterdir() if path.name.startswith("casque-bench")] == []
    assert kept.read_text() == "somebody's own"


def test_bench_is_for_buckets() -> None:
    assert "of a broker" in casque("bench", "grpc://127.0.0.1:7700", ends=2).stderr
    assert "no store speaks" in casque("bench", "ftp://x/y", ends=2).stderr


def test_bench_shows_a_table() -> None:
    shown = casque("bench", "memory://bench-table", "--seconds", "0.02", "-c", "2").stdout.splitlines()
    assert shown[0].split()[-3:] == ["$/million", "at", "S3"]
    assert len(shown) == 7
