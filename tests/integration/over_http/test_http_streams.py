"""The feed and the archive over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from casque.errors import HistoryGoneError, StorageError, UnknownOutcomeError
from casque.service import ArchivedJob, EventKind, QueueEvent, QueueService
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle
from casque.testing.hosting import leading
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.http.sse import Frame, Reader
from casque.types import JobSpec, JobState
from tests.integration.over_http.hosts import Leading, ask, embedded, over_http, serving

NOON = datetime(2026, 2, 15, 12, tzinfo=UTC)


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


class Instead:
    """A queue with another feed or archive."""

    def __init__(self, service: QueueService | None = None, **instead: Any) -> None:
        self._service = service
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


@asynccontextmanager
async def following(
    server: HttpServer, path: str = "/v1/events", last_event_id: str | None = None
) -> AsyncIterator[AsyncGenerator[Frame | str]]:
    """The frames and comments of a feed, read from a plain socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    resume = f"Last-Event-ID: {last_event_id}\r\n" if last_event_id is not None else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{resume}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert b"content-type: text/event-stream" in head.lower()

    async def frames() -> AsyncGenerator[Frame | str]:
        parser = Reader()
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size)
            await reader.readexactly(2)
            if piece.startswith(b":"):
                yield piece.decode()
            for frame in parser.feed(piece):
                yield frame

    stream = frames()
    try:
        yield stream
    finally:
        await stream.aclose()
        writer.close()
        await writer.wait_closed()


async def seen(frames: AsyncGenerator[Frame | str]) -> tuple[str, Any]:
    frame = await anext(frames)
    assert isinstance(frame, Frame)
    return frame.id, json.loads(frame.data)


async def test_a_follower_hears_what_happens_from_now_on(queue: QueueService) -> None:
    await queue.enqueue([JobSpec("before", "send", b"")])
    async with serving(Leading(queue)) as server, following(server) as frames:
        await queue.enqueue([JobSpec("a", "send", b"\xff"), JobSpec("b", "send", b"")])

        first_id, first = await seen(frames)
        second_id, second = await seen(frames)

    assert (first_id, first["kind"], first["job_id"], first["fields"]["payload"]) == ("2.0", "added", "a", "/w==")
    assert (second_id, second["job_id"]) == ("2.1", "b")


async def test_a_reader_that_was_cut_off_goes_on_in_the_middle_of_a_commit(queue: QueueService) -> None:
    await queue.enqueue([JobSpec("a", "send", b""), JobSpec("b", "send", b"")])
    await queue.enqueue([JobSpec("c", "send", b"")])
    async with serving(Leading(queue)) as server:
        async with following(server, last_event_id="1.0") as frames:
            assert [(await seen(frames))[0] for _ in range(2)] == ["1.1", "2.0"]
        async with following(server, last_event_id="1") as frames:
            assert (await seen(frames))[0] == "2.0"
        async with following(server, "/v1/events?from_position=0", last_event_id="1.1") as frames:
            assert (await seen(frames))[0] == "2.0"


async def test_a_reader_that_saw_nothing_yet_knows_where_it_stands(queue: QueueService) -> None:
    await queue.enqueue([JobSpec("a", "send", b"")])
    async with serving(Leading(queue)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await reader.readline()

        assert await reader.readline() == b"id: 1\n"
        writer.close()
        await writer.wait_closed()


async def test_a_quiet_feed_shows_that_it_lives(queue: QueueService) -> None:
    clock = ManualClock()
    async with (
        serving(Leading(queue), clock=clock, keep_alive=timedelta(seconds=15)) as server,
        following(server) as frames,
    ):
        for _ in range(2):
            waiting = asyncio.ensure_future(anext(frames))
            while not waiting.done():
                await clock.advance(1)
                await settle()
            assert await waiting == ": still here\n\n"


async def test_a_feed_without_following_ends_where_the_log_ends(queue: QueueService) -> None:
    await queue.enqueue([JobSpec("a", "send", b"")])
    async with serving(Leading(queue)) as server:
        reply = await ask(server, "GET", "/v1/events?from_position=0&follow=false")

    [added, end] = Reader().feed(reply.body)
    assert json.loads(added.data)["kind"] == "added"
    assert end.event == "end"


async def test_a_position_that_is_not_there_yet_is_refused(queue: QueueService) -> None:
    await queue.enqueue([JobSpec("a", "send", b"")])
    async with serving(Leading(queue)) as server:
        reply = await ask(server, "GET", "/v1/events?from_position=99")

    assert reply.status == 400
    assert "99" in reply.json["message"]


async def test_history_that_is_gone_is_refused_before_the_feed_begins(queue: QueueService) -> None:
    async def gone(*, from_position: int, follow: bool) -> AsyncGenerator[QueueEvent]:
        if from_position < 7:
            raise HistoryGoneError(f"position {from_position}", 7)
        async for event in queue.events(from_position=0, follow=follow):
            yield event

    async with serving(Leading(Instead(queue, events=gone))) as server:
        reply = await ask(server, "GET", "/v1/events?from_position=3")
        async with HttpService(f"127.0.0.1:{server.port}") as remote:
            with pytest.raises(HistoryGoneError) as caught:
                await anext(remote.events(from_position=3))

    assert (reply.status, reply.json["error"]) == (410, "HistoryGoneError")
    assert caught.value.oldest == 7


async def test_a_feed_that_fails_on_the_way_says_why(queue: QueueService) -> None:
    event = QueueEvent(1, 0, NOON, EventKind.PURGED, "a", {})

    async def failing(*, from_position: int, follow: bool) -> AsyncGenerator[QueueEvent]:
        yield event
        if follow:
            raise StorageError("the bucket burnt down")

    async with over_http(Instead(queue, events=failing)) as remote:
        events = remote.events(from_position=0)
        assert await anext(events) == event
        assert await anext(events) == event
        with pytest.raises(StorageError, match="burnt"):
            await anext(events)


async def test_a_follower_that_leaves_ends_its_feed(queue: QueueService) -> None:
    open_feeds = 0
    closed = asyncio.Event()

    async def counted(*, from_position: int, follow: bool) -> AsyncGenerator[QueueEvent]:
        nonlocal open_feeds
        open_feeds += 1
        try:
            async for event in queue.events(from_position=from_position, follow=follow):
                yield event
        finally:
            open_feeds -= 1
            if follow:
                closed.set()

    async with over_http(Instead(queue, events=counted)) as remote:
        await queue.enqueue([JobSpec("a", "send", b"")])
        async with aclosing(remote.events(from_position=0)) as events:
            await anext(events)
        await closed.wait()

        assert open_feeds == 0


def finished(number: int, **more: Any) -> ArchivedJob:
    return ArchivedJob(
        f"job {number}", "send", bytes([number % 256]), JobState.DONE, 1, NOON, NOON, NOON, number, number, **more
    )


async def test_the_archive_comes_as_lines_of_json() -> None:
    asked: dict[str, Any] = {}
    jobs = [finished(number, result=b"\xff", error="once") for number in range(500)]

    async def archive(**query: Any) -> AsyncGenerator[ArchivedJob]:
        asked.update(query)
        for job in jobs:
            yield job

    async with serving(Leading(Instead(archive=archive))) as server:
        reply = await ask(server, "GET", "/v1/archive?since=2026-02-15T13:00:00%2B01:00&state=done&entrypoint=send")
        assert asked == {"since": NOON, "until": None, "entrypoint": "send", "states": frozenset({JobState.DONE})}

        async with HttpService(f"127.0.0.1:{server.port}") as remote:
            until = NOON + timedelta(hours=1)
            read = [job async for job in remote.archive(since=NOON, until=until, states=frozenset({JobState.DEAD}))]
            assert [job async for job in remote.archive(states=frozenset())] == []

    assert reply.headers["Content-Type"] == "application/jsonl"
    assert [json.loads(line)["id"] for line in reply.body.splitlines()] == [job.id for job in jobs]
    assert asked == {"since": NOON, "until": until, "entrypoint": None, "states": frozenset({JobState.DEAD})}
    assert read == jobs


async def test_a_job_that_was_done_over_http_is_in_the_archive() -> None:
    clock = ManualClock()
    async with (
        leading(MemoryStore(), clock=clock, archive_interval=timedelta(seconds=10)) as host,
        serving(host) as server,
        HttpService(f"127.0.0.1:{server.port}") as remote,
    ):
        await remote.enqueue([JobSpec("a", "send", b"\xff", headers={"trace": "1"})])
        [job] = await remote.dequeue(entrypoints=None, limit=1, worker="w1")
        await remote.ack("a", token=job.token, result=b"\xfe")
        await clock.advance(20)

        [archived] = [job async for job in remote.archive(states=frozenset({JobState.DONE}))]

        assert (archived.id, archived.payload, archived.result, archived.worker) == ("a", b"\xff", b"\xfe", "w1")
        assert [job async for job in host.service().archive()] == [archived]


async def test_an_archive_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async def breaking(**_: Any) -> AsyncGenerator[ArchivedJob]:
        yield finished(1)
        raise StorageError("the bucket burnt down")

    async with over_http(Instead(archive=breaking)) as remote:
        jobs = remote.archive()
        assert await anext(jobs) == finished(1)
        with pytest.raises(UnknownOutcomeError, match="broke"):
            await anext(jobs)


def test_frames_are_cut_wherever_the_pieces_end() -> None:
    text = b": hello\n\nid: 1\r\nevent: end\r\ndata: a\r\ndata:b\r\n\r\nid: 2\n\ndata: \xc3\xa4\n\n"
    whole = [Frame("1", "end", "a\nb"), Frame("", "message", "ä")]

    assert list(Reader().feed(text)) == whole
    reader = Reader()
    assert [frame for byte in text for frame in reader.feed(bytes([byte]))] == whole
