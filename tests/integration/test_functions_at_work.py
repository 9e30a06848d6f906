"""Functions that a real worker runs: results come back, functions enqueue others, bad payloads end where they are."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from casque import App, Cancel, InvalidInputError, JobContext, JobEvent, JobState, Progress, Queue
from casque.app import BrokerServer, ServeOptions
from casque.cli.main import app as commands
from casque.client.queue import DEFAULTS
from casque.clock import SystemClock
from casque.transport.listening import Address
from casque.worker import Worker


def shop(place: str) -> App:
    """An app whose functions enqueue one another, from the loop and from a thread."""
    app = App(place, max_attempts=3)

    @app.job()
    async def order(number: int) -> str:
        await pack.enqueue(number)
        return f"order {number}"

    @app.job()
    def pack(number: int) -> list[int]:
        thank.enqueue_sync(f"customer {number}")
        return [number]

    @app.job(backoff=[0])
    def thank(context: JobContext, name: str) -> str:
        if context.attempt == 1:
            raise ConnectionError("not now")
        return f"thank you, {name}, at attempt {context.attempt}"

    return app


async def test_a_worker_runs_functions_that_enqueue_others(tmp_path: Path) -> None:
    app = shop(tmp_path.as_uri())
    async with Queue.open(tmp_path.as_uri()) as queue:
        await queue.enqueue("order", b'{"number":7}')
        wrong = await queue.enqueue("order", b'{"nummer":7}')

    summary = await Worker(app, burst=True).run()

    assert summary.done == 3
    async with Queue.open(tmp_path.as_uri()) as queue:
        [declined] = await queue.jobs()
        assert (declined.id, declined.state, declined.attempts) == (wrong.id, JobState.DELAYED, 0), "for other versions"
        assert declined.last_error is not None
        assert "there is no argument 'nummer'" in declined.last_error or "'number' is missing" in declined.last_error
    results = {
        job.entrypoint: job.result async for job in Queue.open(tmp_path.as_uri()).archive(states=[JobState.DONE])
    }
    assert results == {
        "order": b'"order 7"',
        "pack": b"[7]",
        "thank": b'"thank you, customer 7, at attempt 2"',
    }


@pytest.mark.parametrize("way", ["bucket", "grpc", "http"])
async def test_functions_are_the_same_through_a_broker(way: str, tmp_path: Path) -> None:
    anywhere = Address.parse("127.0.0.1:0")
    quick = DEFAULTS.with_changes({"archive_interval": timedelta(milliseconds=50)})
    broker = BrokerServer(ServeOptions(url=tmp_path.as_uri(), listen=anywhere, http=anywhere, queue=quick))
    await broker.start()
    try:
        match way:
            case "bucket":
                app = App(tmp_path.as_uri(), via="broker")
            case "grpc":
                app = App(f"grpc://127.0.0.1:{broker.grpc_port}")
            case _:
                app = App(f"http://127.0.0.1:{broker.http_port}")
        doubled = app.job(key="{number}")(_double)
        async with app:
            handle = await doubled.enqueue(21)
            assert (await doubled.enqueue(21)).id == handle.id
            waiting = asyncio.create_task(handle.result(timeout=60))
            assert (await Worker(app, burst=True).run()).done == 1
            assert await waiting == [21, 21]
            assert await handle.result(timeout=60) == [21, 21]  # now from the archive
            assert await handle.status() is JobState.DONE
    finally:
        await broker.stop()


def _double(number: int) -> list[int]:
    return [number, number]


async def test_hooks_are_told_what_became_of_jobs_and_harm_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(tmp_path.as_uri(), max_attempts=2)
    said: list[tuple[str, str, int, object]] = []

    @app.job()
    async def well(number: int) -> int:
        return number

    @app.job(backoff=0)
    async def badly() -> None:
        raise ValueError("no")

    @app.job()
    async def neither() -> Cancel:
        return Cancel()

    @app.on_claimed
    async def claimed(event: JobEvent) -> None:
        assert event.due_at is not None
        said.append(("claimed", event.context.entrypoint, event.context.attempt, None))

    @app.on_completed
    def completed(event: JobEvent) -> None:
        assert threading.current_thread() is not threading.main_thread()
        said.append(("completed", event.context.entrypoint, event.context.attempt, event.result))

    @app.on_failed
    async def failed(event: JobEvent) -> None:
        first = str(event.error).partition("\n")[0]
        said.append(("failed", event.context.entrypoint, event.context.attempt, (first, event.final)))

    @app.on_claimed
    @app.on_completed
    @app.on_failed
    def broken(event: JobEvent) -> None:
        raise RuntimeError("hooks may do that")

    async with app:
        await app.enqueue_many([well.bind(7), badly.bind(), neither.bind()])
        summary = await Worker(app, burst=True).run()

    assert (summary.done, summary.failed, summary.cancelled) == (1, 2, 1)
    assert sorted(said, key=str) == [
        ("claimed", "badly", 1, None),
        ("claimed", "badly", 2, None),
        ("claimed", "neither", 1, None),
        ("claimed", "well", 1, None),
        ("completed", "well", 1, b"7"),
        ("failed", "badly", 1, ("ValueError: no", False)),
        ("failed", "badly", 2, ("ValueError: no", True)),
    ]
    assert caplog.text.count("broken failed for") == len(said)
    assert "RuntimeError: hooks may do that" in caplog.text


def test_a_hook_is_a_function() -> None:
    with pytest.raises(InvalidInputError, match=r"@app.on_failed is written without parentheses"):
        App("memory://").on_failed("mail")  # type: ignore[type-var]


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app without a URL, where no file and no variable names one."""
    monkeypatch.delenv("CASQUE_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    app = App(max_attempts=4)
    app.job()(_double)
    return app


async def test_an_app_without_a_url_finds_its_queue_as_the_command_line_does(
    nowhere: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, told = (tmp_path / "named").as_uri(), (tmp_path / "told").as_uri()
    (tmp_path / "casque.toml").write_text(f'url = "{named}"\n[settings]\nmax_attempts = 9\nstale_timeout = 7\n')

    async with nowhere:
        job = await nowhere.queue.enqueue("_double", b'{"number":21}')
        assert job.max_attempts == 4  # what the code says wins
        [claimed] = await nowhere.queue.dequeue()
        assert claimed.record.lease_ms == 7000
        await nowhere.queue.give_back([claimed])
    assert (await Worker(nowhere, burst=True).run()).done == 1

    monkeypatch.setenv("CASQUE_URL", told)
    assert nowhere.located() == (told, {"max_attempts": 4})
    assert (await Worker(nowhere, burst=True).run()).claimed == 0


async def test_an_app_that_finds_no_queue_says_how_to_name_one(nowhere: App, tmp_path: Path) -> None:
    said = r"this app has no queue: give casque.App its URL, set the variable CASQUE_URL, or write url"
    with pytest.raises(InvalidInputError, match=said):
        await nowhere.__aenter__()
    with pytest.raises(InvalidInputError, match=said):
        Worker(nowhere)
    assert (await Worker(nowhere, url=tmp_path.as_uri(), burst=True).run()).claimed == 0


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_how_far_a_function_has_come_is_told_with_heartbeats(tmp_path: Path, where: str) -> None:
    app = App(tmp_path.as_uri())
    seen = threading.Event()

    @app.job()
    async def on_loop(context: JobContext) -> None:
        context.progress(1)
        context.progress(40, total=100, note="pages")
        await asyncio.to_thread(seen.wait, 60)

    @app.job()
    def in_thread(context: JobContext) -> None:
        context.progress(40, total=100, note="pages")
        seen.wait(60)

    async with app:
        handle = await (on_loop if where == "loop" else in_thread).enqueue()
        assert await handle.progress() is None
        working = asyncio.create_task(Worker(app, burst=True, lease=1).run())
        async with asyncio.timeout(60):
            while (progress := await handle.progress()) is None:
                await SystemClock().sleep(0.01)
        shown = await asyncio.to_thread(CliRunner().invoke, commands, ["jobs", "show", tmp_path.as_uri(), handle.id])
        seen.set()
        await working

        assert progress == Progress(40, 100, "pages")
        assert await handle.progress() is None
        assert "40/100 pages, 40%" in shown.stdout


async def test_progress_that_is_no_number_is_refused(tmp_path: Path) -> None:
    context = JobContext("1", "do")
    for done, total, note, said in [
        ("a", None, None, "done must be a number"),
        (float("nan"), None, None, "done must be a number"),
        (1, -1, None, "total must be a number"),
        (1, 2, "x" * 201, "note must be a str"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            context.progress(done, total, note)  # type: ignore[arg-type]
    assert context.last_progress is None
