"""The README says what is so: its quick start runs, its commands exist, and so do the tests it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WORDS_MAX = 700


def test_the_quick_start_is_at_most_fifteen_lines_and_runs(tmp_path: Path) -> None:
    [quick_start] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(quick_start.splitlines()) <= 15
    script = tmp_path / "quick_start.py"
    script.write_text(quick_start)

    ended = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert (ended.returncode, ended.stdout) == (0, "hello world\n"), ended.stderr
    assert (tmp_path / "jobs" / "queue.json").is_file()


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("run", "test"):
        assert f"make {command}" in README
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= WORDS_MAX


def test_its_picture_is_there() -> None:
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).is_file(), picture


def test_every_guarantee_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (?!guarantee)(\S.*) \|$", page, re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        proofs = re.findall(r"`(tests/[^`]*)`", row)
        assert proofs, row
        for proof in proofs:
            assert (ROOT / proof).exists(), proof


def test_the_figures_are_those_of_the_benchmarks() -> None:
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text()
    depths = ("0", "1,000", "20,000")
    log = figures(r"files, calls per second at ([\d,]+) jobs, times jqueue's", benchmarks)
    document = figures(r"calls per second at ([\d,]+) jobs against jqueue's", benchmarks)
    page = (ROOT / "docs" / "how-to" / "move-from-jqueue.md").read_text()
    quoted = re.search(
        r"([\d.]+) times as many.*?([\d.]+) times at 1,000.*?([\d.]+) times at 20,000"
        r".*?made ([\d.]+), ([\d.]+)\s+and ([\d.]+) times as many",
        page,
        re.DOTALL,
    )
    assert quoted is not None
    found = [log[depth] for depth in depths] + [document[depth] for depth in depths]
    assert [float(figure) for figure in quoted.groups()] == [round(figure, 1) for figure in found]
    short = re.search(r"([\d.]+) times as many.*?([\d.]+) times at 1,000.*?([\d.]+) times at 20,000", README, re.DOTALL)
    assert short is not None
    assert short.groups() == quoted.groups()[:3]


def figures(what: str, benchmarks: str) -> dict[str, float]:
    """Those of the newest run, which comes first."""
    rows = re.findall(what + r" +\| ≥ [\d.]+ x +\| ([\d.]+) x", benchmarks)
    return {depth: float(figure) for depth, figure in reversed(rows)}
