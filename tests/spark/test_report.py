"""Every number of a report is what the script of the known history says, worked out without a queue and Spark."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from casque.cli.main import app
from casque.errors import InvalidInputError
from casque.spark.report import Report, build
from casque.spark.report.figures import Figures
from casque.spark.report.headline import compare, headlines
from casque.spark.report.period import HOUR_MS, MINUTE_MS, Period
from simulation.known_history import HOSTILE
from tests.spark.known_answers import Made
from tests.spark.servers import connect_server

pytestmark = pytest.mark.xdist_group("spark")

SKETCHED = {"p50_ms", "p90_ms", "p99_ms"}


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that can be read off, by where it stands."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield f"{path}.length", len(value)
        for number, one in enumerate(value):
            yield from numbers(one, f"{path}[{number}]")
    else:
        yield path, value


def differences(found: Figures, right: Figures) -> list[str]:
    """What is not as it should be. Percentiles of up to 400 values are exact; sums of shares are rounded."""
    plain, expected = (
        dict(numbers(msgspec.to_builtins(one, str_keys=True)))
        for one in (msgspec.structs.replace(each, wait_histogram={}, run_histogram={}) for each in (found, right))
    )
    wrong = list(plain.keys() ^ expected.keys())
    for path in plain.keys() & expected.keys():
        one, other = plain[path], expected[path]
        is_sketched = path.rpartition(".")[2] in SKETCHED and plain[f"{path.rpartition('.')[0]}.count"] > 400
        loose = 0.15 if is_sketched else 1e-6
        same = one == pytest.approx(other, rel=loose, abs=1e-9) if isinstance(other, float | int) else one == other
        if not same:
            wrong.append(f"{path}: {one} and not {other}")
    return sorted(wrong)


def test_every_number_of_the_whole_history(known_warehouse: Made, whole_report: Report) -> None:
    assert whole_report.figures.period == known_warehouse.extent
    assert differences(whole_report.figures, known_warehouse.answers(known_warehouse.extent)) == []


def test_every_number_of_the_history_of_a_ring(spark: SparkSession, ring_warehouse: Made) -> None:
    figures = build(spark, ring_warehouse.warehouse).figures
    assert differences(figures, ring_warehouse.answers(figures.period)) == []


def test_the_histograms_hold_every_span(known_warehouse: Made, whole_report: Report) -> None:
    total = known_warehouse.answers(known_warehouse.extent).total
    for counts, spread in (
        (whole_report.figures.wait_histogram, total.wait),
        (whole_report.figures.run_histogram, total.run),
    ):
        assert sum(counts.values()) == spread.count
        assert max(counts) >= (spread.max_ms or 0) > max(counts) / 1.3
        shorter = sum(count for most, count in counts.items() if most <= (spread.p50_ms or 0))
        assert shorter / spread.count == pytest.approx(0.5, abs=0.1)


def test_as_of_a_moment_is_as_if_nothing_had_happened_since_whatever_time_zone_the_session_has(
    spark: SparkSession, known_warehouse: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms = known_warehouse.known.begin_ms // HOUR_MS * HOUR_MS + 3 * HOUR_MS
    begin_ms = at_ms - 300 * HOUR_MS
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        report = build(spark, known_warehouse.warehouse, begin=moment(begin_ms), as_of=moment(at_ms + 59_999))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        monkeypatch.undo()
        time.tzset()
    period = Period(begin_ms, at_ms)
    assert report.figures.period == period
    assert period.step_ms > HOUR_MS, "long enough for the tables by hour"
    assert differences(report.figures, known_warehouse.answers(period)) == []


def test_a_period_in_which_nothing_happened_says_so(spark: SparkSession, known_warehouse: Made) -> None:
    report = build(
        spark, known_warehouse.warehouse, begin=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert report.figures.empty
    page = report.html()
    assert "Nothing happened in this period." in page
    assert "<svg" not in page


class Seen(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"a handler: {name}"
            if name in ("src", "href", "srcset", "data", "action") and not (value or "").startswith(("#", "data:,")):
                self.fetched.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_needs_nothing_and_names_are_nothing_but_text(whole_report: Report) -> None:
    seen = Seen(whole_report.html())
    assert seen.open == []
    assert seen.fetched == []
    assert "script" not in seen.tags
    assert HOSTILE in seen.text, "the entrypoint is shown as it is called"
    assert "zürich <&>" in seen.text
    assert "url(" not in whole_report.html()
    assert "@import" not in whole_report.html()


def test_the_page_shows_the_figures(known_warehouse: Made, whole_report: Report) -> None:
    text = Seen(whole_report.html()).text
    for one in headlines(whole_report.figures):
        assert one.name in text
        assert str(one) in text, one
    assert f"{known_warehouse.answers(known_warehouse.extent).total.finished:,}" in text
    assert text.count("time (UTC)") > 3, "axes say which time they mean"
    for title in (
        "Depth over time",
        "Latency",
        "By hour",
        "Entrypoints",
        "Dead letters by error",
        "Worker utilisation",
    ):
        assert title in text
    for letters in whole_report.figures.dead_letters:
        assert f"job {letters.sample_job}" in text


def test_charts_have_a_name_and_a_table_beside_them(whole_report: Report) -> None:
    page = whole_report.html()
    assert page.count('role="img"') == len(re.findall(r'role="img" aria-label="[^"]+"', page))
    assert page.count("<details>") >= 5


# --- The command ---


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture
def keeps_the_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends the session that it started; here it is everybody's."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)


@pytest.mark.long
def test_the_command_compares_two_periods_to_the_minute_on_a_connect_server(
    known_warehouse: Made, tmp_path: Path
) -> None:
    before = Period(known_warehouse.known.begin_ms + 7 * MINUTE_MS, known_warehouse.known.begin_ms + 100 * MINUTE_MS)
    after = Period(before.to_ms, before.to_ms + 93 * MINUTE_MS)
    page = tmp_path / "report.html"
    command = [
        *(sys.executable, "-m", "casque.cli", "report", known_warehouse.warehouse, "-o", str(page), "--json"),
        *("--from", moment(after.from_ms).isoformat(), "--to", moment(after.to_ms).isoformat()),
        *("--compare", f"{moment(before.from_ms).isoformat()}..{moment(before.to_ms).isoformat()}"),
    ]
    with connect_server() as remote:
        ran = subprocess.run([*command, "--remote", remote], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    report = msgspec.json.decode(ran.stdout, type=Report)
    right = known_warehouse.answers(after)
    assert differences(report.figures, right) == []
    assert report.comparison is not None
    expected = compare(known_warehouse.answers(before), right)
    assert (report.comparison.before, report.comparison.after) == (before, after)
    for found, known in zip(report.comparison.headline, expected.headline, strict=True):
        assert found.before == pytest.approx(known.before, rel=0.0101), found
        assert found.after == pytest.approx(known.after, rel=0.0101), found
        if found.unit == "count":
            assert found.difference == pytest.approx(known.difference, abs=1e-5)
    names = [one.entrypoint for one in report.comparison.entrypoints]
    assert names == [one.entrypoint for one in expected.entrypoints]
    assert page.read_text() == report.html()
    assert "Comparison of two periods" in page.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("keeps_the_session")
def test_a_warehouse_that_is_not_there_or_empty_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    ran = run(f"file://{tmp_path}/none", "-o", str(tmp_path / "report.html"))
    assert ran.exit_code == 2
    assert "casque pipeline run QUEUE" in ran.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "-o report.html"),
        (("--json", "--from", "yesterday"), "--from takes a time"),
        (("--json", "--as-of", "2026-02-30"), "--as-of takes a time"),
        (("--json", "--compare", "2026-02-15"), "two dots"),
        (("--json", "--compare", "2026-02-15..2026-02-15"), "ends before it begins"),
    ],
)
def test_bad_questions_are_refused_before_spark_starts(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = run(f"file://{tmp_path}", *arguments)
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_without_arrow_the_command_says_what_to_install() -> None:
    without = "import sys; sys.modules['pyarrow'] = None; from casque.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", without, "report", "file:///x", "--json"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert 'pip install "casque[spark]"' in ran.stderr


def test_periods_that_make_no_sense_are_refused(spark: SparkSession, known_warehouse: Made) -> None:
    with pytest.raises(InvalidInputError, match="ends before it begins"):
        build(
            spark,
            known_warehouse.warehouse,
            begin=datetime(2026, 2, 16, tzinfo=UTC),
            end=datetime(2026, 2, 15, tzinfo=UTC),
        )
    with pytest.raises(InvalidInputError, match="knows nothing from before"):
        build(spark, known_warehouse.warehouse, as_of=datetime(2026, 1, 1, tzinfo=UTC))
