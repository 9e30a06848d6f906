"""Every number of a report is what the script of the known history says, worked out without a queue and Spark."""

from __future__ import annotations

import asyncio
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

from casque import Queue
from casque.cli.main import app
from casque.errors import InvalidInputError
from casque.spark import models, pipeline, session
from casque.spark.report import Report, build, queries
from casque.spark.report.figures import Figures
from casque.spark.report.headline import compare, headlines
from casque.spark.report.page import Origin, page
from casque.spark.report.period import HOUR_MS, MINUTE_MS, Period
from casque.testing import ManualClock
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


def test_short_periods_are_exact_to_the_second_and_to_ten_seconds(spark: SparkSession, known_warehouse: Made) -> None:
    hour_ms = known_warehouse.known.begin_ms // HOUR_MS * HOUR_MS
    seconds = Period(hour_ms + 64 * MINUTE_MS, hour_ms + 66 * MINUTE_MS)
    tens = Period(hour_ms + 90 * MINUTE_MS, hour_ms + 115 * MINUTE_MS)
    assert (seconds.step_ms, tens.step_ms) == (1000, 10_000)
    report = build(
        spark,
        known_warehouse.warehouse,
        begin=moment(tens.from_ms),
        end=moment(tens.to_ms),
        compare_with=(moment(seconds.from_ms), moment(seconds.to_ms)),
    )
    assert report.before is not None
    assert report.before.total.finished > 5
    assert differences(report.before, known_warehouse.answers(seconds)) == []
    assert differences(report.figures, known_warehouse.answers(tens)) == []


def test_zones_after_the_largest_are_summed(
    spark: SparkSession, known_warehouse: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "ZONES_MAX", 2)
    period = Period(known_warehouse.known.begin_ms, known_warehouse.known.begin_ms + 2 * HOUR_MS)
    report = build(spark, known_warehouse.warehouse, begin=moment(period.from_ms), end=moment(period.to_ms))
    right = known_warehouse.answers(period)
    found, rest, costs = report.figures, right.zones[2:], right.costs[2:]
    assert [one.name for one in found.zones] == [one.name for one in right.zones[:2]]
    assert found.fairness.zones == right.fairness.zones == len(right.zones), "all zones are compared"
    assert len(rest) > 1
    assert found.other_zones is not None
    for name in ("enqueued", "finished", "done", "died", "attempts", "failed"):
        assert getattr(found.other_zones, name) == sum(getattr(one.tally, name) for one in rest), name
    assert found.other_zones.wait.sum_ms == sum(one.tally.wait.sum_ms for one in rest)
    assert found.other_zones.wait.p50_ms is not None
    assert [one.zone for one in found.costs] == [one.zone for one in right.costs[:2]]
    assert found.other_costs is not None
    assert found.other_costs.operations == sum(one.operations for one in costs)
    assert found.dollars == pytest.approx(right.dollars)
    assert f"{len(rest)} other zones" in Seen(report.html()).text


@pytest.mark.long
def test_a_history_of_seconds_begins_and_ends_at_its_second(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(play_for_seconds(f"file://{tmp_path}/orders"))
    pipeline.run(spark, f"file://{tmp_path}/orders", f"file://{tmp_path}/warehouse")
    report = build(spark, f"file://{tmp_path}/warehouse")
    assert str(report.figures.period) == "2026-02-15 21:10:03 to 2026-02-15 21:10:24 UTC"
    assert [one.tally.finished for one in report.figures.over_time if one.tally.finished] == [1] * 10
    assert report.figures.throughput == pytest.approx(10 / 21)
    text = Seen(report.html()).text
    assert "casque report: orders" in text
    assert f"file://{tmp_path}/orders" in text
    assert "Noisy neighbours" not in text, "there is one zone"
    assert "By hour" not in text


async def play_for_seconds(url: str) -> None:
    """Ten jobs, one every two seconds, each of which takes one."""
    clock = ManualClock(1_771_189_803_500)  # 21:10:03.5
    async with Queue.open(url, clock=clock) as queue:
        for _ in range(10):
            await queue.enqueue("work", b"")
            await clock.advance(1)
            [job] = await queue.dequeue("work")
            await clock.advance(1)
            await job.ack()
        await queue.enqueue("work", b"")
        await clock.advance(1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("psycopg2.errors.UniqueViolation: duplicate key", "psycopg2.errors.UniqueViolation"),
        ("S3UploadFailedError: 503", "S3UploadFailedError"),
        ("no user 17: gone", "no user #"),
        ("Order17: gone", "Order#"),
        ("0xFFEE at fault", "# at fault"),
        ("job 5f0c1d9e-6a3f-4b0e-9d51-0a1b2c3d4e5f: late", "job #"),
    ],
)
def test_an_error_keeps_its_full_class(spark: SparkSession, error: str, kind: str) -> None:
    spark.sql(models.text("error_class"))
    assert spark.sql("SELECT error_class(:error) AS kind", {"error": error}).collect()[0]["kind"] == kind


def test_a_period_in_which_nothing_happened_says_so(spark: SparkSession, known_warehouse: Made) -> None:
    report = build(
        spark, known_warehouse.warehouse, begin=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert report.figures.empty
    page = report.html()
    assert "Nothing happened in this period." in page
    assert "<svg" not in page


# --- The page ---


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
        "Throughput and failures",
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


def page_of(made: Made, period: Period, before: Period | None = None) -> str:
    figures, earlier = made.answers(period), None if before is None else made.answers(before)
    comparison = None if earlier is None else compare(earlier, figures)
    return page(figures, Origin("file:///warehouse", 0, made.extent, "s3://bucket/or<d>ers"), comparison, earlier)


def test_throughput_and_failures_are_drawn_with_their_numbers(known_warehouse: Made) -> None:
    total = known_warehouse.answers(known_warehouse.extent).total
    html = page_of(known_warehouse, known_warehouse.extent)
    assert 'aria-label="Jobs enqueued and finished"' in html
    assert 'aria-label="Failed attempts and jobs that died"' in html
    text = Seen(html).text
    for count in (total.enqueued, total.finished, total.failed, total.died):
        assert any(one.startswith(f"{count:,}, at most ") and one.endswith("per 5 min") for one in text), count


def test_the_queue_is_named_and_its_name_is_nothing_but_text(known_warehouse: Made) -> None:
    text = Seen(page_of(known_warehouse, known_warehouse.extent)).text
    assert "casque report: or<d>ers" in text
    assert "s3://bucket/or<d>ers" in text


def test_areas_are_drawn_on_linear_axes_alone(whole_report: Report) -> None:
    for chart in re.findall(r"<svg.*?</svg>", whole_report.html(), re.DOTALL):
        assert not ("logarithmic" in chart and "<polygon" in chart)


def test_steps_and_hours_that_are_not_complete_are_marked(known_warehouse: Made) -> None:
    whole = page_of(known_warehouse, Period(known_warehouse.extent.from_ms, known_warehouse.extent.to_ms))
    assert whole.count(' part"') == 4, "the first and the last hour, on two maps"
    assert "2026-02-16 02:00 to 02:50 UTC, incomplete" in whole
    assert 'class="partial"' not in whole.partition("Jain&#x27;s index between zones by hour")[0], "02:50 ends a step"
    hour_ms = known_warehouse.extent.from_ms // HOUR_MS * HOUR_MS
    later = page_of(known_warehouse, Period(hour_ms + HOUR_MS, hour_ms + 7 * HOUR_MS))
    assert "incomplete: ends at 2026-02-16 02:50 UTC" in later
    between = page_of(known_warehouse, Period(hour_ms + HOUR_MS, hour_ms + 4 * HOUR_MS))
    assert ' part"' not in between
    assert 'class="partial"' not in between


def test_two_periods_stand_side_by_side_on_the_same_axis(known_warehouse: Made) -> None:
    begin = known_warehouse.extent.from_ms
    before, after = Period(begin, begin + 2 * HOUR_MS), Period(begin + 2 * HOUR_MS, begin + 4 * HOUR_MS)
    html = page_of(known_warehouse, after, before)
    pairs = re.findall(r'<div class="pair">(.*?)</div></figure></div>', html, re.DOTALL)
    assert len(pairs) == 3
    for pair in pairs:
        ticks = [re.findall(r'text-anchor="end">([^<]+)<', svg) for svg in re.findall(r"<svg.*?</svg>", pair)]
        assert len(ticks) == 2
        assert ticks[0] == ticks[1]


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
        *(sys.executable, "-m", "casque.cli", "report", known_warehouse.warehouse, "--output", str(page), "--json"),
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
    ran = run(f"file://{tmp_path}/none", "--output", str(tmp_path / "report.html"))
    assert ran.exit_code == 2
    assert "casque pipeline run QUEUE" in ran.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("keeps_the_session")
def test_the_command_names_the_period_that_there_is(known_warehouse: Made, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    ran = run(known_warehouse.warehouse, "--output", str(page), "--from", "2026-03-01", "--to", "2026-03-02")
    assert ran.exit_code == 0
    said = " ".join((ran.stdout + ran.stderr).split())
    assert f"choose --from and --to within {known_warehouse.extent}" in said
    assert "Choose another with --from and --to" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--output report.html"),
        (("--json", "--from", "yesterday"), "--from takes a time"),
        (("--json", "--as-of", "2026-02-30"), "--as-of takes a time"),
        (("--json", "--from", "2026-02-16", "--to", "2026-02-15"), "--from and --to ends before it begins"),
        (("--json", "--from", "2026-02-16", "--to", "2026-02-16"), "Choose a later end"),
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


@pytest.mark.long
def test_the_program_in_the_docs_writes_the_page(
    spark: SparkSession, known_warehouse: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "read-the-report.md").read_text()
    [program] = re.findall(r"^```python our_report.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    # A session that is found would take over the settings of a new one.
    monkeypatch.setattr(session, "local_session", lambda: spark)
    names: dict[str, Any] = {}
    exec(program.replace("s3://bucket/warehouse", known_warehouse.warehouse), names)
    assert (tmp_path / "report.html").read_text() == names["report"].html()
    assert names["report"].figures.total.finished > 0
