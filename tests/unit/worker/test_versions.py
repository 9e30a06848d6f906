"""Producers and workers of different versions: what a worker does not understand goes back for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from casque import App, InvalidInputError, JobState, NotUnderstoodError, Queue
from casque.cli.main import app as commands
from casque.clock import new_nonce, system_random
from casque.service import Outcome, OutcomeKind
from casque.state.settling import DECLINES_MAX
from casque.types import Backoff
from casque.worker import JobContext, Worker

FROM_A_NEWER = b'{"to":"ann","cc":"bob"}'


def older(url: str, ran: list[str], executor: Any = None) -> App:
    app = App(url)

    @app.job(executor=executor)
    def send(to: str) -> None:
        ran.append(to)

    return app


def newer(url: str, ran: list[str]) -> App:
    app = App(url)

    @app.job()
    async def send(to: str, cc: str | None = None) -> None:
        ran.append(f"{to} {cc}")

    return app


def story(url: str, job_id: str) -> str:
    """What `casque jobs show` prints."""
    return " ".join(CliRunner().invoke(commands, ["jobs", "show", url, job_id]).output.split())


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_an_older_worker_gives_back_a_job_of_a_newer_producer_and_a_newer_worker_does_it(executor: str) -> None:
    url, ran = "memory://" + new_nonce(system_random()), list[str]()
    async with Queue.open(url) as queue:
        await queue.enqueue("send", FROM_A_NEWER, max_attempts=1)
        summary = await Worker(older(url, ran, executor), burst=True).run()
        [job] = await queue.jobs()
        assert (summary.declined, summary.failed, ran) == (1, 0, [])
        assert (job.state, job.attempts, job.record.declined) == (JobState.DELAYED, 0, 1)
        assert "cc" in str(job.last_error)

        [again] = await queue.dequeue("send", wait=20)
        doing: Any = newer(url, ran).handlers["send"].call(again.raw_payload, JobContext(again.id, "send"))
        await doing
        await again.ack()
    assert ran == ["ann bob"]


async def test_what_no_worker_understands_is_dead_in_the_end_and_says_why(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    async with Queue.open(url) as queue:
        added = await queue.enqueue("send", FROM_A_NEWER)
        for _ in range(DECLINES_MAX - 1):
            [job] = await queue.dequeue("send", wait=20)
            await queue.settle([Outcome(job.id, job.token, "an argument cc", delay_ms=0, how=OutcomeKind.DECLINED)])
        [waiting] = await queue.jobs()
        assert waiting.state is not JobState.DEAD
        shown = await asyncio.to_thread(story, url, added.id)
        assert f"{DECLINES_MAX - 1} claims gave it back because the worker did not understand it" in shown
        assert "an argument cc" in shown

        await Worker(older(url, []), burst=True).run()
        [dead] = await queue.jobs()
        assert dead.state is JobState.DEAD
        shown = await asyncio.to_thread(story, url, added.id)
        assert f"no worker understood it: {DECLINES_MAX} claims" in shown


async def test_an_outcome_that_declines_says_why_and_nothing_else() -> None:
    async with Queue.open("memory://" + new_nonce(system_random())) as queue:
        await queue.enqueue("send", b"")
        [job] = await queue.dequeue("send")
        for outcome in (
            Outcome(job.id, job.token, how=OutcomeKind.DECLINED),
            Outcome(job.id, job.token, "no", b"result", how=OutcomeKind.DECLINED),
            Outcome(job.id, job.token, "no", backoff=Backoff(1, 2), how=OutcomeKind.DECLINED),
        ):
            with pytest.raises(InvalidInputError):
                await queue.settle([outcome])
        assert (await queue.find(job.id)).state is JobState.RUNNING  # type: ignore[union-attr]


def test_arguments_of_another_version_are_told_from_a_payload_that_a_function_refuses() -> None:
    handler = older("memory://versions", []).handlers["send"]
    with pytest.raises(NotUnderstoodError, match="'send' takes"):
        handler.call(FROM_A_NEWER, JobContext("1", "send"))
