"""`casque cron list|set|pause|resume|trigger|drop`, on files and through a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.client.loop_thread import LoopThread
from casque.state import SetSchedule
from casque.transport.listening import Address
from casque.types import JobSpec, ScheduleSpec
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")


async def fill(q: Queue[bytes]) -> None:
    await q.set_schedule("nightly", "0 3 * * *", ("report", b"all"), tz="Europe/Berlin", origin="shop.jobs")
    await q.set_schedule("yearly", "@yearly", ("report", b"\xff"), missed="skip")


@pytest.fixture(params=["file", "broker"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = (tmp_path / "queue").as_uri()
    on(place, fill)
    if request.param == "file":
        yield place
        return
    thread = LoopThread("broker")
    server = BrokerServer(ServeOptions(url=place, listen=Address.parse("127.0.0.1:0")))
    thread.wait(server.start())
    try:
        yield f"grpc://{server.address}"
    finally:
        thread.wait(server.stop())
        thread.end()


def test_schedules_are_listed_paused_resumed_triggered_and_dropped(url: str) -> None:
    nightly, yearly = lines_of(casque("cron", "list", url, "--json"))
    assert (nightly["name"], nightly["cron"], nightly["tz"], nightly["missed"]) == (
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
        "one",
    )
    assert (nightly["text"], nightly["paused"], nightly["origin"]) == ("all", False, "shop.jobs")
    assert (yearly["payload"], yearly["text"], yearly["origin"], yearly["last_at"]) == ("/w==", None, None, None)
    assert yearly["next_at"].endswith("-01-01T00:00:00Z")
    [heading, first, second] = casque("cron", "list", url).stdout.splitlines()
    assert heading.split() == ["name", "cron", "tz", "next", "in", "missed", "entrypoint", "payload", "origin"]
    assert first.split()[0] == "nightly"
    assert second.split()[:2] == ["yearly", "@yearly"]

    assert casque("cron", "pause", url, "nightly").stdout == "nightly rests\n"
    [paused] = lines_of(casque("cron", "pause", url, "nightly", "--json"))
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert "paused" in casque("cron", "list", url).stdout
    assert casque("cron", "resume", url, "nightly").stdout.startswith("nightly goes on: next at 20")

    job_id = casque("cron", "trigger", url, "nightly").stdout.strip()
    [job] = lines_of(casque("jobs", "list", url, "--json"))
    assert (job["id"], job["text"], job["headers"]) == (job_id, "all", {"casque-schedule": "nightly"})
    [told] = lines_of(casque("cron", "trigger", url, "yearly", "--json"))
    assert told["schedule"] == "yearly"

    assert "nothing was done" in casque("cron", "drop", url, "nightly", told="n\n", ends=1).output
    assert casque("cron", "drop", url, "nightly", "--yes").stdout == "nightly is dropped\n"
    assert [one["name"] for one in lines_of(casque("cron", "list", url, "--json"))] == ["yearly"]
    for verb in ("pause", "resume", "trigger"):
        assert "there is no schedule 'nightly'" in casque("cron", verb, url, "nightly", ends=1).stderr
    assert "there is no schedule 'nightly'" in casque("cron", "drop", url, "nightly", "--yes", ends=1).stderr
    assert "which schedule? casque cron pause [URL] NAME" in casque("cron", "pause", url, ends=2).stderr


def test_a_schedule_is_set_and_changed_and_keeps_its_pause(url: str) -> None:
    hourly = ("cron", "set", url, "hourly", "0 * * * *", "--entrypoint", "remind")
    assert casque(*hourly).stdout.startswith("hourly is set: next at 20")
    assert casque("cron", "pause", url, "hourly").stdout == "hourly rests\n"
    assert casque(*hourly).stdout == "hourly is set, and rests until it is resumed\n"
    more = ("--args", '{"to": "ada"}', "--tz", "Europe/Berlin", "--missed", "skip", "--priority", "-2", "--key", "one",
            "--zone", "north", "--header", "a=b", "--max-attempts", "3", "--max-crashes", "2", "--json")  # fmt: skip
    [changed] = lines_of(casque(*hourly, *more))
    assert (changed["text"], changed["tz"], changed["missed"]) == ('{"to":"ada"}', "Europe/Berlin", "skip")
    assert (changed["priority"], changed["key"], changed["zone"], changed["headers"]) == (
        -2,
        "one",
        "north",
        {"a": "b"},
    )
    assert (changed["max_attempts"], changed["max_crashes"], changed["paused"]) == (3, 2, True)
    assert changed["origin"] is None
    assert lines_of(casque("cron", "list", url, "--json"))[-1] == changed

    declared = casque("cron", "set", url, "nightly", "@daily", "-e", "report", "--payload", "-", told="some")
    assert "nightly is declared in shop.jobs: the next worker of that program sets it back" in declared.stderr
    assert lines_of(casque("cron", "list", url, "--json"))[0]["text"] == "some"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("nightly",), "which schedule, and when? casque cron set [URL] NAME"),
        (("nightly", "* * * * *"), "for which handler? Give --entrypoint"),
        (("nightly", "61 * * * *", "-e", "report"), "minute"),
        (("nightly", "@daily", "-e", "report", "--tz", "Mars/North"), "Mars/North"),
        (("nightly", "@daily", "-e", "report", "--args", "[1]"), '--args must be a JSON object such as {"to": "ada"}'),
        (("nightly", "@daily", "-e", "report", "--args", "{}", "--payload", "x"), "either --payload or --args"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_and_changes_nothing(
    given: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    place = (tmp_path / "queue").as_uri()
    on(place, fill)
    before = casque("cron", "list", place, "--json").stdout
    assert said in casque("cron", "set", place, *given, ends=2).stderr
    assert casque("cron", "list", place, "--json").stdout == before


def test_looking_at_a_queue_adds_no_jobs_to_it(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()

    async def set_long_ago() -> None:
        async with Queue.open(place, ticks=False) as q:
            spec = ScheduleSpec("often", "* * * * *", JobSpec("", "report", b""))
            assert q._group is not None
            await q._group.execute(SetSchedule(spec, 1_577_836_860_000))

    asyncio.run(set_long_ago())
    assert casque("jobs", "list", place, "--json").stdout == ""
    [listed] = lines_of(casque("cron", "list", place, "--json"))
    assert listed["next_at"] == "2020-01-01T00:01:00Z"

    async def notice(q: Queue[bytes]) -> list[str]:
        return [job.id for job in await q.jobs()]

    # One for all that was missed, and one for the minute that has just begun, or two if another one begins.
    assert len(on(place, notice)) in (2, 3)


def test_a_queue_without_schedules_says_so(tmp_path: Path) -> None:
    casque("queue", "create", (tmp_path / "queue").as_uri())
    assert "no schedules" in casque("cron", "list", (tmp_path / "queue").as_uri()).stderr
