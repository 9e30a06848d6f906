"""`casque cost` and the model behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.cli.cost.model import Load, calls_per_s, commits_per_s, embedded, snapshot_bytes_per_commit, through_brokers
from casque.prices import PRICES, S3, StoreKind
from tests.integration.shell import casque, lines_of


def test_a_queue_that_is_seldom_asked_commits_every_call() -> None:
    assert commits_per_s(0.01, 25) == pytest.approx(0.01)
    assert commits_per_s(0, 25) == 0


def test_a_busy_queue_commits_as_often_as_its_store_allows() -> None:
    assert commits_per_s(10_000, 25) == pytest.approx(40)
    assert through_brokers(Load(jobs_per_s=10_000), S3, round_trip_ms=25, brokers=1).puts_per_s < 41


def test_what_was_counted_at_a_store_is_what_is_estimated() -> None:
    """Runs of ten seconds, a round trip of 5 ms."""
    led = through_brokers(Load(jobs_per_s=5), S3, round_trip_ms=5, brokers=2)
    assert [led.puts_per_s, led.gets_per_s] == pytest.approx([15.0, 24.0], rel=0.05)
    idle = through_brokers(Load(jobs_per_s=0), S3, round_trip_ms=5, brokers=2)
    assert [idle.puts_per_s, idle.gets_per_s] == pytest.approx([0.42, 5.6], rel=0.25)
    for workers, rate, puts, gets in ((3, 2, 8.8, 78.2), (2, 20, 75.2, 302.7)):
        shared = embedded(Load(jobs_per_s=rate, workers=workers), S3, round_trip_ms=5)
        assert shared.puts_per_s == pytest.approx(puts, rel=0.1)
        assert shared.gets_per_s == pytest.approx(gets, rel=0.25)


def test_batches_and_long_jobs_change_the_calls() -> None:
    assert calls_per_s(Load(jobs_per_s=10)) == 30
    assert calls_per_s(Load(jobs_per_s=10, batch=10)) == 3
    assert calls_per_s(Load(jobs_per_s=10, workers=4, run_s=600, lease_s=60)) == pytest.approx(30 + 4 / 20)


def test_a_deep_queue_is_not_copied_all_the_time() -> None:
    assert snapshot_bytes_per_commit(1_000, 300) == pytest.approx(1_000 / 512)
    assert snapshot_bytes_per_commit(1e9, 300) == pytest.approx(64 * 1024)


def test_the_command_tells_both_ways() -> None:
    [told] = lines_of(casque("cost", "--rate", "10", "--store", "r2", "--json"))
    expected = through_brokers(Load(jobs_per_s=10, workers=2), PRICES[StoreKind.R2], round_trip_ms=60, brokers=2)
    assert told["brokers"]["dollars_per_month"] == pytest.approx(expected.dollars_per_month)
    assert told["embedded"]["commits_per_s"] < told["brokers"]["commits_per_s"]
    shown = casque("cost", "--rate", "10", "--put-price", "0", "--get-price", "0").stdout
    assert [line.split()[-2:] for line in shown.splitlines()[-2:]] == [["0.00", "0.00"]] * 2
    assert "--job-lease" in casque("cost", "--lease", "0", ends=2).stderr


def test_the_reference_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    assert casque("cost", "--rate", "10").stdout in page


def test_files_cost_nothing_and_nothing_costs_little() -> None:
    [told] = lines_of(casque("cost", "--rate", "0", "--store", "files", "--json"))
    assert told["brokers"]["dollars_per_month"] == 0
    assert told["brokers"]["dollars_per_million_jobs"] is None


def test_a_budget_of_requests_moves_commits_apart() -> None:
    shown = casque("cost", "--rate", "10", "--requests-per-day", "200000").stdout
    assert "200,000 requests a day of a process that commits, within its 200,000" in shown
    [costs] = lines_of(casque("cost", "--rate", "10", "--requests-per-day", "200000", "--json"))
    assert costs["requests_per_day"] == 200_000
    assert 0 < costs["brokers"]["interval_s"] < 75
    assert costs["brokers"]["dollars_per_month"] < 60


def test_a_budget_that_heartbeats_alone_use_up_is_said_to_be_too_small() -> None:
    shown = casque("cost", "--requests-per-minute", "10").stdout
    assert "commits 75 s apart" in shown
    assert "over its 14,400" in shown
