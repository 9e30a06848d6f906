"""Everything that the documentation of the small API shows, run as shown.

Each test makes the calls of one documented snippet, with real parts behind it: S3 snippets talk to a real server that
is found through the usual environment variables, so that the snippet itself does not have to say where it is.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import casque
from casque import (
    BrokerQueue,
    CASConflictError,
    CasqueError,
    DirectQueue,
    GCSStorage,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobNotFoundError,
    JobStatus,
    LocalFileSystemStorage,
    ObjectStoragePort,
    QueueState,
    S3Storage,
    StorageError,
)
from casque.testing.clock import ManualClock, settle
from tests.support.servers import Server

Kind = type[BrokerQueue | DirectQueue]

s3 = pytest.mark.xdist_group("s3")
gcs = pytest.mark.xdist_group("gcs")


class CountingStorage:
    """A user's own adapter as documented: two methods, no base class. It counts, and can be held up."""

    def __init__(self) -> None:
        self.content = b""
        self.reads = 0
        self.writes = 0
        self.writing = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> tuple[bytes, str | None]:
        self.reads += 1
        return self.content, self._etag()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.writing.set()
        await self.gate.wait()
        if if_match is not None and if_match != self._etag():
            raise CASConflictError("the object has changed")
        self.content = content
        self.writes += 1
        return str(self.writes)

    def _etag(self) -> str | None:
        return str(self.writes) if self.writes else None


@pytest.fixture(scope="module")
def s3_with_buckets(s3_server: Server) -> Server:
    s3_server.make_bucket("my-bucket")
    return s3_server


@pytest.fixture
def aws(s3_with_buckets: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """What a machine that may use S3 has in its environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_with_buckets.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_with_buckets.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_with_buckets.options["secret_access_key"])
    return s3_with_buckets


@pytest.fixture(scope="module")
def gcs_with_buckets(gcs_server: Server) -> Server:
    gcs_server.make_bucket("my-bucket")
    return gcs_server


@pytest.fixture
def google(gcs_with_buckets: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs_with_buckets.endpoint)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", gcs_with_buckets.options["bearer_token"])
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_with_buckets.endpoint)
    return gcs_with_buckets


@asynccontextmanager
async def opened(kind: Kind, storage: Any, **more: Any) -> AsyncIterator[BrokerQueue | DirectQueue]:
    q = kind(storage, **more)
    if isinstance(q, BrokerQueue):
        async with q:
            yield q
    else:
        yield q


async def works(storage: Any) -> None:
    """A queue on this storage takes a job in and gives it out, in both kinds of queue."""
    async with BrokerQueue(storage) as q:
        added = await q.enqueue("task", b"data")
        [claimed] = await q.dequeue("task")
        assert claimed.id == added.id
    direct = DirectQueue(storage)
    await direct.ack(claimed.id)
    assert (await direct.read_state()).jobs == ()


# --- Quick start ---


def test_the_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with BrokerQueue(InMemoryStorage()) as q:
            await q.enqueue("send_email", b'{"to": "alice@example.com"}')
            await q.enqueue("send_email", b'{"to": "bob@example.com"}')

            jobs = await q.dequeue("send_email", batch_size=2)
            for job in jobs:
                async with HeartbeatManager(q, job.id):
                    print(f"Sending email: {job.payload!r}")
                await q.ack(job.id)

    asyncio.run(main())

    said = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1] for line in said] == [
        """b'{"to": "alice@example.com"}'""",
        """b'{"to": "bob@example.com"}'""",
    ]


async def test_the_storage_can_be_a_local_file_by_str_or_path_whose_directory_is_created(tmp_path: Path) -> None:
    path = tmp_path / "var" / "lib" / "myapp" / "queue.json"

    await works(LocalFileSystemStorage(str(path)))
    await works(LocalFileSystemStorage(path))

    assert path.exists()


@s3
@pytest.mark.usefixtures("aws")
async def test_the_storage_can_be_s3_with_credentials_from_the_environment() -> None:
    await works(S3Storage(bucket="my-bucket", key="queues/jobs.json"))


@gcs
@pytest.mark.usefixtures("google")
async def test_the_storage_can_be_google_with_credentials_from_the_environment() -> None:
    await works(GCSStorage(bucket_name="my-bucket", blob_name="queues/jobs.json"))


# --- Use cases ---


async def test_a_worker_loop_processes_what_a_web_handler_enqueues() -> None:
    resized: list[bytes] = []
    idle = asyncio.Event()

    async def resize(image: bytes) -> None:
        resized.append(image)

    async def worker(q: BrokerQueue) -> None:
        while True:
            jobs = await q.dequeue("resize_image", batch_size=5)
            if not jobs:
                idle.set()
                await asyncio.Event().wait()  # documented as a sleep; a test waits for no clock
                continue
            for job in jobs:
                async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30)):
                    await resize(job.payload)
                await q.ack(job.id)

    async with BrokerQueue(InMemoryStorage()) as q:
        for n in range(7):
            await q.enqueue("resize_image", payload=b"image %d" % n, priority=0)
        working = asyncio.create_task(worker(q))
        await idle.wait()
        working.cancel()

        assert resized == [b"image %d" % n for n in range(7)]
        assert (await q.read_state()).jobs == ()


@s3
@pytest.mark.usefixtures("aws")
async def test_two_keys_are_two_queues() -> None:
    email_queue = BrokerQueue(S3Storage(bucket="my-bucket", key="queues/email.json"))
    sms_queue = BrokerQueue(S3Storage(bucket="my-bucket", key="queues/sms.json"))

    async with email_queue, sms_queue:
        await asyncio.gather(email_queue.enqueue("send", b"email"), sms_queue.enqueue("send", b"sms"))
        [email] = await email_queue.dequeue("send", batch_size=10)
        [sms] = await sms_queue.dequeue("send", batch_size=10)

        assert (email.payload, sms.payload) == (b"email", b"sms")
        with pytest.raises(JobNotFoundError):
            await sms_queue.ack(email.id)
        await email_queue.ack(email.id)
        await sms_queue.ack(sms.id)


async def test_a_lower_priority_value_is_processed_first() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("report", b"best effort", priority=10)
        await q.enqueue("report", b"urgent", priority=0)
        await q.enqueue("report", b"most urgent", priority=-1)

        payloads = [job.payload for job in await q.dequeue("report", batch_size=3)]

        assert payloads == [b"most urgent", b"urgent", b"best effort"]


async def test_a_long_job_that_fails_returns_to_the_queue() -> None:
    clock = ManualClock()

    async def transcode(video: bytes) -> bytes:
        if len(attempts) == 1:
            raise RuntimeError("bad frame")
        return video.upper()

    attempts: list[int] = []
    results: list[bytes] = []

    async with BrokerQueue(InMemoryStorage(), clock=clock) as q:

        async def work() -> None:
            [job] = await q.dequeue("transcode_video")
            attempts.append(job.attempts)
            try:
                async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30)):
                    results.append(await transcode(job.payload))
                await q.ack(job.id)
            except Exception:
                await q.nack(job.id)

        await q.enqueue("transcode_video", b"film")
        await work()
        [failed] = (await q.read_state()).queued_jobs()
        assert (failed.status, failed.heartbeat_at) == (JobStatus.QUEUED, None)

        await clock.advance(60)
        await work()

        assert (attempts, results) == ([1, 2], [b"FILM"])
        assert (await q.read_state()).jobs == ()


async def test_a_worker_can_be_tested_without_infrastructure() -> None:
    processed: list[bytes] = []

    async def process_email(job: Job[bytes]) -> None:
        processed.append(job.payload)

    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("send_email", b'{"to": "test@example.com"}')
        [job] = await q.dequeue("send_email")
        await process_email(job)
        await q.ack(job.id)
        state = await q.read_state()
        assert len(state.jobs) == 0

    assert processed == [b'{"to": "test@example.com"}']


@s3
async def test_an_endpoint_url_and_a_region_name_lead_to_another_s3(
    s3_with_buckets: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_with_buckets.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_with_buckets.options["secret_access_key"])
    storage = S3Storage(
        bucket="my-bucket",
        key="queue.json",
        endpoint_url=s3_with_buckets.endpoint,
        region_name="us-east-1",
    )

    await works(storage)


# --- How it works ---


async def test_a_direct_queue_needs_no_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    q = DirectQueue(LocalFileSystemStorage("queue.json"))
    job = await q.enqueue("task", b"data")
    [claimed] = await q.dequeue("task")
    await q.ack(claimed.id)

    assert claimed.id == job.id
    assert await q.dequeue("task") == []
    assert (tmp_path / "queue.json").exists()


async def test_a_direct_queue_writes_once_per_operation() -> None:
    storage = CountingStorage()
    q = DirectQueue(storage)

    await q.enqueue("task", b"1")
    await q.enqueue("task", b"2")
    [job] = await q.dequeue("task")
    await q.heartbeat(job.id)
    await q.nack(job.id)

    assert storage.writes == 5


async def test_three_enqueues_at_once_are_one_write() -> None:
    storage = CountingStorage()

    async with BrokerQueue(storage) as q:
        await asyncio.gather(
            q.enqueue("task", b"1"),
            q.enqueue("task", b"2"),
            q.enqueue("task", b"3"),
        )

        assert storage.writes == 1
        assert [job.payload for job in (await q.read_state()).jobs] == [b"1", b"2", b"3"]


async def test_what_arrives_during_a_write_is_the_next_one() -> None:
    storage = CountingStorage()
    storage.gate.clear()

    async with BrokerQueue(storage) as q:
        first = asyncio.create_task(q.enqueue("task", b"first"))
        await storage.writing.wait()
        rest = asyncio.gather(*(q.enqueue("task", b"%d" % n) for n in range(50)))
        await settle()
        storage.gate.set()
        await first
        await rest

        assert storage.writes == 2


async def test_leaving_the_block_finishes_what_was_asked() -> None:
    storage = CountingStorage()
    storage.gate.clear()

    async with BrokerQueue(storage) as q:
        first = asyncio.create_task(q.enqueue("task", b"first"))
        await storage.writing.wait()
        rest = [asyncio.create_task(q.enqueue("task", b"%d" % n)) for n in range(5)]
        await settle()
        storage.gate.set()

    assert first.done()
    assert all(task.done() for task in rest)
    stored = await DirectQueue(storage).read_state()
    assert {job.id for job in stored.jobs} == {task.result().id for task in (first, *rest)}


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_a_queue_that_loses_a_race_tries_again_by_itself(kind: Kind) -> None:
    storage = InMemoryStorage()
    rival = DirectQueue(storage)

    async with opened(kind, storage) as q:
        await q.enqueue("task", b"mine")
        await rival.enqueue("task", b"theirs")
        await q.enqueue("task", b"mine again")

    assert [job.payload for job in (await rival.read_state()).jobs] == [b"mine", b"theirs", b"mine again"]


async def test_one_bad_operation_in_a_batch_fails_alone() -> None:
    storage = CountingStorage()

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"waiting")
        enqueued, bad, dequeued = await asyncio.gather(
            q.enqueue("task", b"valid"), q.nack("missing"), q.dequeue("task"), return_exceptions=True
        )

        assert isinstance(enqueued, Job)
        assert isinstance(bad, JobNotFoundError)
        assert isinstance(dequeued, list)
        assert [job.payload for job in dequeued] == [b"waiting"]
        assert storage.writes == 2


async def test_a_heartbeat_manager_sends_heartbeats_until_the_block_ends() -> None:
    clock = ManualClock()

    async with BrokerQueue(InMemoryStorage(), clock=clock) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30), clock=clock):
            await clock.advance(600)
        await clock.advance(45)

        [running] = (await q.read_state()).in_progress_jobs()
        assert job.heartbeat_at is not None
        assert running.heartbeat_at == job.heartbeat_at + timedelta(seconds=600)


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_requeue_stale_takes_back_what_has_been_silent_for_too_long(
    kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    async with opened(kind, InMemoryStorage(), clock=clock, stale_timeout=timedelta(hours=1)) as q:
        for n in range(3):
            await q.enqueue("task", b"%d" % n)
        await q.dequeue("task", batch_size=2)
        await clock.advance(301)
        await q.dequeue("task")

        requeued = await q.requeue_stale(timeout=timedelta(minutes=5))
        print(f"Recovered {requeued} stale jobs")
        state = await q.read_state()

    assert capsys.readouterr().out == "Recovered 2 stale jobs\n"
    assert [job.payload for job in state.queued_jobs()] == [b"0", b"1"]
    assert [job.payload for job in state.in_progress_jobs()] == [b"2"]
    assert all(job.heartbeat_at is None for job in state.queued_jobs())


async def test_a_broker_queue_takes_stale_jobs_back_by_itself() -> None:
    clock = ManualClock()

    async with BrokerQueue(InMemoryStorage(), clock=clock, stale_timeout=timedelta(minutes=5)) as q:
        await q.enqueue("task", b"data")
        await q.dequeue("task")
        await clock.advance(301)

        assert [job.status for job in (await q.read_state()).jobs] == [JobStatus.QUEUED]


# --- The wire format ---


def _document(second_payload: str) -> bytes:
    return json.dumps(
        {
            "version": 3,
            "jobs": [
                {
                    "id": "550e8400-e29b-41d4-a716-446655440000",
                    "entrypoint": "send_email",
                    "payload": "eyJ0byI6ICJ1c2VyQGV4YW1wbGUuY29tIn0=",
                    "status": "queued",
                    "priority": 0,
                    "created_at": "2024-01-01T12:00:00+00:00",
                    "heartbeat_at": None,
                },
                {
                    "id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
                    "entrypoint": "resize_image",
                    "payload": second_payload,
                    "status": "in_progress",
                    "priority": 5,
                    "created_at": "2024-01-01T11:59:00+00:00",
                    "heartbeat_at": "2024-01-01T12:00:45+00:00",
                },
            ],
        },
        indent=2,
    ).encode()


async def test_the_documented_document_is_a_queue() -> None:
    async with BrokerQueue(InMemoryStorage(initial_content=_document("/9j/4AA="))) as q:
        state = await q.read_state()
        email, image = state.jobs

        assert state.version == 3
        assert (email.id, email.entrypoint) == ("550e8400-e29b-41d4-a716-446655440000", "send_email")
        assert email.payload == b'{"to": "user@example.com"}'
        assert (email.status, email.priority, email.heartbeat_at) == (JobStatus.QUEUED, 0, None)
        assert email.created_at == datetime(2024, 1, 1, 12, tzinfo=UTC)
        assert (image.status, image.priority) == (JobStatus.IN_PROGRESS, 5)
        assert image.payload == b"\xff\xd8\xff\xe0\x00"
        assert image.heartbeat_at == datetime(2024, 1, 1, 12, 0, 45, tzinfo=UTC)

        [claimed] = await q.dequeue("send_email")
        await q.ack(claimed.id)
        await q.ack(image.id)
        assert (await q.read_state()).jobs == ()


async def test_the_documented_document_is_a_queue_to_the_letter() -> None:
    q = DirectQueue(InMemoryStorage(initial_content=_document("...")))

    assert [job.payload for job in (await q.read_state()).jobs] == [b'{"to": "user@example.com"}', b""]


async def test_what_is_stored_has_the_documented_fields(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    q = DirectQueue(LocalFileSystemStorage(path))
    added = await q.enqueue("send_email", b"hello", 7)

    document = json.loads(path.read_text())

    assert document["version"] == 1
    [job] = document["jobs"]
    assert (job["id"], job["entrypoint"], job["payload"]) == (added.id, "send_email", "aGVsbG8=")
    assert (job["status"], job["priority"], job["heartbeat_at"]) == ("queued", 7, None)
    assert datetime.fromisoformat(job["created_at"]) == added.created_at


async def test_the_version_rises_with_every_write_and_only_then() -> None:
    q = DirectQueue(InMemoryStorage())
    versions = [(await q.read_state()).version]
    await q.enqueue("task", b"data")
    versions.append((await q.read_state()).version)
    [job] = await q.dequeue("task")
    versions.append((await q.read_state()).version)
    await q.dequeue("task")
    versions.append((await q.read_state()).version)
    await q.ack(job.id)
    versions.append((await q.read_state()).version)

    assert versions == [0, 1, 2, 2, 3]


# --- Storage adapters ---


async def test_in_memory_storage_starts_empty_or_with_content() -> None:
    await works(InMemoryStorage())
    await works(InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}'))


@s3
@pytest.mark.usefixtures("aws")
async def test_s3_storage_in_a_region() -> None:
    await works(S3Storage(bucket="my-bucket", key="jobs.json", region_name="eu-central-1"))


@s3
@pytest.mark.usefixtures("aws")
async def test_s3_storage_at_an_endpoint(aws: Server) -> None:
    await works(S3Storage(bucket="my-bucket", key="jobs.json", endpoint_url=aws.endpoint))


@s3
async def test_s3_storage_with_an_aioboto3_session(s3_with_buckets: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import aioboto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_with_buckets.endpoint)
    storage = S3Storage(
        bucket="my-bucket",
        key="jobs.json",
        session=aioboto3.Session(
            aws_access_key_id=s3_with_buckets.options["access_key_id"],
            aws_secret_access_key=s3_with_buckets.options["secret_access_key"],
        ),
    )

    await works(storage)


@pytest.fixture
def google_client(google: Server) -> Iterator[Callable[..., Any]]:
    """Google's own client class, and its sockets closed at the end."""
    from google.cloud import storage

    clients: list[Any] = []

    def make(**arguments: Any) -> Any:
        clients.append(storage.Client(**arguments))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@gcs
async def test_gcs_storage_with_a_client(google_client: Callable[..., Any]) -> None:
    storage = GCSStorage(
        bucket_name="my-bucket",
        blob_name="jobs.json",
        client=google_client(project="my-project"),
    )

    await works(storage)


async def test_an_own_adapter_with_two_methods_holds_a_queue() -> None:
    storage = CountingStorage()
    port: ObjectStoragePort = storage

    assert isinstance(port, ObjectStoragePort)
    await works(port)
    assert storage.writes == 3


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
def test_what_is_no_adapter_is_refused_at_once(kind: Kind) -> None:
    with pytest.raises(casque.InvalidInputError, match="read"):
        kind(object())


# --- API reference ---


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
@pytest.mark.parametrize(
    ("verb", "documented"),
    [
        ("enqueue", "(self, entrypoint, payload, priority=0)"),
        ("dequeue", "(self, entrypoint=None, *, batch_size=1)"),
        ("ack", "(self, job_id)"),
        ("nack", "(self, job_id)"),
        ("heartbeat", "(self, job_id)"),
        ("read_state", "(self)"),
        ("requeue_stale", "(self, timeout)"),
    ],
)
def test_every_verb_takes_the_documented_arguments(kind: type, verb: str, documented: str) -> None:
    given = inspect.signature(getattr(kind, verb)).parameters
    promised = _parameters(documented)

    assert [name for name in given if name in promised] == list(promised)
    for name, parameter in promised.items():
        assert given[name].kind is parameter.kind
        assert given[name].default == parameter.default
    more = [parameter for name, parameter in given.items() if name not in promised]
    assert all(parameter.default is not inspect.Parameter.empty for parameter in more)


def _parameters(documented: str) -> dict[str, inspect.Parameter]:
    scope: dict[str, Any] = {}
    exec(f"def verb{documented}: ...", scope)
    return dict(inspect.signature(scope["verb"]).parameters)


def test_the_heartbeat_manager_takes_the_documented_arguments() -> None:
    given = list(inspect.signature(HeartbeatManager).parameters.values())

    assert [parameter.name for parameter in given[:3]] == ["queue", "job_id", "interval"]
    assert given[2].default == timedelta(seconds=60)


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_every_verb_answers_as_documented(kind: Kind) -> None:
    async with opened(kind, InMemoryStorage()) as q:
        job: Job[bytes] = await q.enqueue(entrypoint="task", payload=b"data", priority=3)
        assert (job.status, job.entrypoint, job.payload, job.priority) == (JobStatus.QUEUED, "task", b"data", 3)
        jobs: list[Job[bytes]] = await q.dequeue(entrypoint=None, batch_size=1)
        assert isinstance(jobs, list)
        assert (jobs[0].id, jobs[0].status) == (job.id, JobStatus.IN_PROGRESS)
        for answer in (
            await q.heartbeat(job_id=job.id),  # type: ignore[func-returns-value]
            await q.nack(job_id=job.id),  # type: ignore[func-returns-value]
        ):
            assert answer is None
        with pytest.raises(casque.LeaseLostError):
            await q.ack(job_id=job.id)
        other = await q.enqueue(entrypoint="other", payload=b"data")
        await q.dequeue("other")
        await q.ack(job_id=other.id)
        assert [one.id for one in (await q.read_state()).jobs] == [job.id]
    async with opened(kind, InMemoryStorage()) as q:
        state: QueueState = await q.read_state()
        assert state.jobs == ()
        requeued: int = await q.requeue_stale(timeout=timedelta(minutes=5))
        assert requeued == 0


async def test_a_broker_queue_outside_of_its_block_says_how_to_use_it() -> None:
    q = BrokerQueue(InMemoryStorage())

    with pytest.raises(casque.QueueClosedError, match="async with"):
        await q.enqueue("task", b"data")
    async with q:
        pass
    with pytest.raises(casque.QueueClosedError, match="async with"):
        await q.enqueue("task", b"data")


async def test_anything_with_a_heartbeat_can_be_managed() -> None:
    clock = ManualClock()
    beats: list[str] = []

    class Double:
        async def heartbeat(self, job_id: str) -> None:
            beats.append(job_id)

    async with HeartbeatManager(Double(), "some-job", clock=clock):
        await clock.advance(180)
    await clock.advance(180)

    assert beats == ["some-job"] * 3


async def test_a_heartbeat_for_a_job_that_is_gone_ends_without_a_sound() -> None:
    clock = ManualClock()

    async with BrokerQueue(InMemoryStorage(), clock=clock) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job.id, timedelta(seconds=30), clock=clock):
            await q.ack(job.id)
            await clock.advance(120)


async def test_a_job_has_the_documented_fields_and_is_frozen() -> None:
    clock = ManualClock(wall_ms=1_700_000_000_123)
    q = DirectQueue(InMemoryStorage(), clock=clock)
    waiting = await q.enqueue("task", b"data", priority=2)
    await clock.advance(10)
    [job] = await q.dequeue("task")

    assert isinstance(job.id, str)
    assert len(job.id) == 36
    assert (job.entrypoint, job.payload, job.priority) == ("task", b"data", 2)
    assert (waiting.status, job.status) == (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
    assert waiting.heartbeat_at is None
    assert job.created_at == waiting.created_at == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert job.heartbeat_at == job.created_at + timedelta(seconds=10)
    assert job.created_at.tzinfo is UTC
    for field in ("id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at"):
        with pytest.raises(AttributeError):
            setattr(job, field, None)
    assert [status.name for status in JobStatus] == ["QUEUED", "IN_PROGRESS", "DEAD"]


async def test_a_queue_state_has_the_documented_methods() -> None:
    clock = ManualClock()
    q = DirectQueue(InMemoryStorage(), clock=clock)
    for entrypoint, priority in (("a", 1), ("b", 0), ("a", 0), ("a", 0)):
        await clock.advance(1)
        await q.enqueue(entrypoint, b"%d" % priority, priority)
    [running] = await q.dequeue("b")

    state = await q.read_state()

    assert isinstance(state.jobs, tuple)
    assert state.version == 5
    first, second, third, fourth = state.jobs
    assert state.queued_jobs() == (third, fourth, first)
    assert state.queued_jobs("a") == state.queued_jobs(entrypoint="a") == (third, fourth, first)
    assert state.queued_jobs("b") == ()
    assert state.in_progress_jobs() == (second,)
    assert second.id == running.id
    assert state.find(third.id) == third
    assert state.find("missing") is None


async def test_a_queue_state_is_frozen() -> None:
    state = await DirectQueue(InMemoryStorage()).read_state()

    with pytest.raises(AttributeError):
        setattr(state, "version", 7)  # noqa: B010  what mypy forbids is tried all the same


# --- Errors ---


@pytest.mark.parametrize("error", [CASConflictError, JobNotFoundError, StorageError])
def test_every_documented_error_is_caught_by_the_base_class(error: type[Exception]) -> None:
    assert issubclass(error, CasqueError)


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
async def test_a_job_that_is_not_there_is_named_in_the_error(kind: Kind, verb: str) -> None:
    async with opened(kind, InMemoryStorage()) as q:
        with pytest.raises(JobNotFoundError) as caught:
            await getattr(q, verb)("missing")

    assert caught.value.job_id == "missing"


async def test_an_ack_of_a_job_that_is_gone_can_be_ignored() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        job = await q.enqueue("task", b"data")
        await q.ack(job.id)

        try:
            await q.ack(job.id)
        except JobNotFoundError:
            pass

        assert (await q.read_state()).jobs == ()


async def test_a_storage_that_fails_is_reported_with_its_cause() -> None:
    broken = OSError("the disk is on fire")

    class Broken:
        async def read(self) -> tuple[bytes, str | None]:
            raise broken

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            raise AssertionError("nothing was read, so nothing can be written")

    q = DirectQueue(Broken(), storage_patience=timedelta(milliseconds=1))

    with pytest.raises(StorageError) as caught:
        await q.read_state()

    assert caught.value.cause is broken


async def test_a_race_that_is_lost_every_time_is_reported_in_the_end() -> None:
    clock = ManualClock()

    class Contended(CountingStorage):
        async def write(self, content: bytes, if_match: str | None = None) -> str:
            self.writes += 1
            raise CASConflictError("another writer was first")

        def _etag(self) -> str | None:
            return None

    storage = Contended()
    q = DirectQueue(storage, clock=clock)

    call = asyncio.create_task(q.enqueue("task", b"data"))
    await clock.advance(60)

    with pytest.raises(CASConflictError):
        await call
    assert storage.writes > 10


# --- Deep dive ---


async def test_the_metrics_function() -> None:
    async def collect_metrics(q: BrokerQueue) -> dict[str, Any]:
        state = await q.read_state()
        now = datetime.now(UTC)  # noqa: TID251 -- as documented
        queued = state.queued_jobs()
        return {
            "queue_depth": len(queued),
            "in_progress": len(state.in_progress_jobs()),
            "version": state.version,
            "oldest_queued_age_s": (now - min(j.created_at for j in queued)).total_seconds() if queued else 0,
        }

    async with BrokerQueue(InMemoryStorage()) as q:
        assert await collect_metrics(q) == {
            "queue_depth": 0,
            "in_progress": 0,
            "version": 0,
            "oldest_queued_age_s": 0,
        }
        for _ in range(3):
            await q.enqueue("task", b"data")
        await q.dequeue("task")

        metrics = await collect_metrics(q)

        assert (metrics["queue_depth"], metrics["in_progress"], metrics["version"]) == (2, 1, 4)
        assert metrics["oldest_queued_age_s"] >= 0


async def test_looking_at_the_state_writes_nothing() -> None:
    storage = CountingStorage()

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"data")
        for _ in range(10):
            await q.read_state()

        assert storage.writes == 1


async def test_looking_at_the_state_does_not_wait_for_a_write() -> None:
    """It is documented for health checks, which are asked most when the storage is slow."""
    storage = CountingStorage()

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"data")
        storage.gate.clear()
        storage.writing.clear()
        slow = asyncio.create_task(q.enqueue("task", b"more"))
        await storage.writing.wait()
        looking = asyncio.create_task(q.read_state())
        await settle()
        answered = looking.done()
        storage.gate.set()
        await slow
        await looking

    assert answered
