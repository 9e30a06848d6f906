"""The benchmarks run from end to end, on sizes that say nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    names = "state, document, log, deep, bulk, latency, cost, grpc, field, spark-read, spark-write, spark-pipeline"
    assert f"{names}, spark-work" in done.stderr


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
