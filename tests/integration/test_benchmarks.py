"""The benchmarks run from end to end, on sizes that say nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.field import section
from benchmarks.report import Section
from benchmarks.scale import TINY

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmarks_print_tables_and_keep_the_numbers(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--tiny", "--only", "state,cost", "--json", str(kept)]
    command += ["--plot", str(tmp_path / "cost.svg")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "state: commands per second by depth" in done.stdout
    assert "cost: requests and bytes per 1,000 calls" in done.stdout
    found = json.loads(kept.read_text())["sections"]
    [requests] = found["cost"]["tables"]
    puts = requests["columns"].index("PUT")
    assert all(row[puts] > 0 for row in requests["rows"])
    assert {row[0] for row in requests["rows"]} == {"document", "log"}
    assert "casque, log layout" in (tmp_path / "cost.svg").read_text()


def test_the_log_sections_measure_every_depth(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--only", "log,deep", "--json", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())["sections"]
    assert [row[0] for row in found["log"]["tables"][0]["rows"]] == [0, 2_000]
    _bulk, opened, beside = found["deep"]["tables"]
    assert [row[0] for row in opened["rows"]] == ["filled in bulk", "opened"]
    assert all(row[beside["columns"].index("snapshots")] >= 1 for row in beside["rows"])


def test_the_bulk_section_measures_claims_and_outcomes_beside_single_acks(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--only", "bulk", "--json", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [rates] = json.loads(kept.read_text())["sections"]["bulk"]["tables"]
    assert [row[0] for row in rates["rows"]][1:3] == ["dequeue", "settle, all done"]
    assert all(row[1] > 0 for row in rates["rows"])


def test_an_unknown_section_is_refused_with_the_names_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "speed"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    names = "state, document, log, deep, bulk, zones, latency, cost, ring, grpc, field, spark-read, spark-write"
    assert f"{names}, spark-pipeline, spark-work" in done.stderr


def test_a_side_of_the_field_enqueues_and_works(tmp_path: Path) -> None:
    def figure(task: str) -> float:
        wanted = {"task": task, "place": f"file://{tmp_path}/queue", "count": 50}
        command = [sys.executable, "-m", "benchmarks.field.of_casque", json.dumps(wanted)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: float = json.loads(done.stdout)
        return found

    assert figure("bulk") > 0
    assert figure("work") > 0


def test_a_side_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    nobody = section.Contender(name="nobody", module="of_nobody", server="directory", share=1, python="own")
    found: section.Found = defaultdict(list)
    failures: list[str] = []
    section.Suite(nobody, 300, found, failures).run(tmp_path / "place", TINY)
    assert found == {}
    [failure] = failures
    assert failure.startswith("nobody, 300 waiting, failed: prepare: ")
    assert "No module named benchmarks.field.of_nobody" in failure


def test_the_field_is_compared_by_its_best_durable_one() -> None:
    sides: dict[str, section.Found] = {
        "casque, embedded": {"bulk": [300.0], "idle start": [3.0, 5.0, 6.0]},
        "casque, broker": {"bulk": [50.0, 150.0, 160.0], "idle start": [2.0]},
        "PgQueuer": {"bulk": [100.0]},
        "RQ": {"bulk": [90.0]},
        "jqueue": {"bulk": [1000.0], "idle start": [1.0]},
    }
    found = Section()
    table = section.comparison(found, {0: sides})
    rows = {row[0]: row[2:] for row in table.rows}
    assert rows["enqueue, bulk"] == ["PgQueuer", "100", "≥ 2.00 x", "3.00 x, met", "1.50 x, MISSED"]
    assert rows["idle start, ms"] == ["—", "—", "≤ 4.00 ms", "5.00 ms, MISSED", "2.00 ms, met"]
    assert rows["one worker"][3:] == ["failed, MISSED", "failed, MISSED"]
    assert sum(target.met for target in found.targets) == 2


@pytest.mark.long
def test_the_grpc_section_measures_rates_the_wait_and_the_idle_fleet(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--only", "grpc", "--json", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls, bulk, latency, idle = json.loads(kept.read_text())["sections"]["grpc"]["tables"]
    for rates in (calls, bulk):
        assert [row[0] for row in rates["rows"]] == ["embedded", "grpc"]
        assert all(row[1] > 0 for row in rates["rows"])
    assert latency["rows"][0][0] > 0
    assert [row[0] for row in idle["rows"]] == [0, 50]
