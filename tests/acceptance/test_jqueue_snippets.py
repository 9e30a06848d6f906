"""What jqueue's documentation shows, with only the package's name changed.

`test_documented_snippets.py` has the same for casque's own names. Here are the imports by jqueue's paths, the arguments
by jqueue's names and order, and the programs that the drop-in answers in another way than casque does.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from casque.compat.jqueue import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobNotFoundError,
    JobStatus,
    JQueueError,
    LocalFileSystemStorage,
    ObjectStoragePort,
    QueueState,
    StorageError,
)
from tests.support.servers import Server

BUCKET = "jqueue-snippets"
s3 = pytest.mark.xdist_group("s3")
gcs = pytest.mark.xdist_group("gcs")


@pytest.fixture(scope="module")
def s3_with_bucket(s3_server: Server) -> Server:
    s3_server.make_bucket(BUCKET)
    return s3_server


@pytest.fixture
def aws(s3_with_bucket: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine that may use S3 has in its environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_with_bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_with_bucket.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_with_bucket.options["secret_access_key"])


@pytest.fixture
def google(gcs_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gcs_server.make_bucket(BUCKET)
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs_server.endpoint)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", gcs_server.options["bearer_token"])
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.endpoint)


async def works(storage: Any) -> None:
    """A queue on this storage takes a job in and gives it out, in both kinds of queue."""
    async with BrokerQueue(storage) as q:
        added = await q.enqueue("task", b"data")
        [claimed] = await q.dequeue("task")
        assert claimed.id == added.id
        await q.ack(claimed.id)
    assert (await DirectQueue(storage).read_state()).jobs == ()


def test_the_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with BrokerQueue(InMemoryStorage()) as q:
            await q.enqueue("send_email", b'{"to": "alice@example.com"}')
            await q.enqueue("send_email", b'{"to": "bob@example.com"}')
            for job in await q.dequeue("send_email", batch_size=2):
                async with HeartbeatManager(q, job.id):
                    print(f"Sending email: {job.payload!r}")
                await q.ack(job.id)

    asyncio.run(main())

    assert capsys.readouterr().out.splitlines() == [
        """Sending email: b'{"to": "alice@example.com"}'""",
        """Sending email: b'{"to": "bob@example.com"}'""",
    ]


def test_every_module_has_its_old_path() -> None:
    from casque.compat.jqueue.adapters.storage.filesystem import LocalFileSystemStorage as ByPath
    from casque.compat.jqueue.adapters.storage.gcs import GCSStorage
    from casque.compat.jqueue.adapters.storage.memory import InMemoryStorage as InMemoryByPath
    from casque.compat.jqueue.adapters.storage.s3 import S3Storage
    from casque.compat.jqueue.core import broker, codec, direct, group_commit, heartbeat
    from casque.compat.jqueue.domain import errors, models
    from casque.compat.jqueue.ports import storage

    assert (ByPath, InMemoryByPath) == (LocalFileSystemStorage, InMemoryStorage)
    assert (broker.BrokerQueue, direct.DirectQueue) == (BrokerQueue, DirectQueue)
    assert heartbeat.HeartbeatManager is HeartbeatManager
    assert (models.Job, models.QueueState, models.JobStatus) == (Job, QueueState, JobStatus)
    assert (errors.JQueueError, errors.StorageError) == (JQueueError, StorageError)
    assert storage.ObjectStoragePort is ObjectStoragePort
    for made in (S3Storage("b", "k"), GCSStorage("b", "k"), InMemoryStorage(), ByPath("queue.json")):
        assert isinstance(made, ObjectStoragePort)
    assert callable(codec.encode)
    assert callable(group_commit.GroupCommitLoop)


async def test_a_local_file(tmp_path: Path) -> None:
    await works(LocalFileSystemStorage(str(tmp_path / "var" / "queue.json")))
    await works(LocalFileSystemStorage(tmp_path / "var" / "queue.json"))


@s3
@pytest.mark.usefixtures("aws")
async def test_s3_with_credentials_from_the_environment() -> None:
    from casque.compat.jqueue.adapters.storage.s3 import S3Storage

    await works(S3Storage(bucket=BUCKET, key="queues/jobs.json"))
    await works(S3Storage(bucket=BUCKET, key="jobs.json", region_name="eu-central-1"))


@s3
async def test_s3_elsewhere_with_a_session_of_ones_own(s3_with_bucket: Server) -> None:
    import aioboto3

    from casque.compat.jqueue.adapters.storage.s3 import S3Storage

    session = aioboto3.Session(
        aws_access_key_id=s3_with_bucket.options["access_key_id"],
        aws_secret_access_key=s3_with_bucket.options["secret_access_key"],
    )

    def storage(bucket: str = BUCKET) -> S3Storage:
        return S3Storage(
            bucket=bucket,
            key="own.json",
            session=session,
            region_name="us-east-1",
            endpoint_url=s3_with_bucket.endpoint,
        )

    assert await storage().read() == (b"", None)
    etag = await storage().write(b'{"version": 0, "jobs": []}')
    with pytest.raises(CASConflictError):
        await storage().write(b"second creator")
    newer = await storage().write(b'{"version": 1, "jobs": []}', if_match=etag)
    with pytest.raises(CASConflictError):
        await storage().write(b"stale", if_match=etag)
    assert await storage().read() == (b'{"version": 1, "jobs": []}', newer)
    await works(storage())
    with pytest.raises(StorageError, match="no-such-bucket"):
        await DirectQueue(storage("no-such-bucket")).enqueue("task", b"data")


@gcs
@pytest.mark.usefixtures("google")
async def test_google_cloud_storage_with_and_without_a_client() -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google_storage

    from casque.compat.jqueue.adapters.storage.gcs import GCSStorage

    client = google_storage.Client(project="test", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    try:
        await works(GCSStorage(bucket_name=BUCKET, blob_name="queues/jobs.json"))
        await works(GCSStorage(bucket_name=BUCKET, blob_name="jobs.json", client=client))
    finally:
        client.close()


async def test_a_worker_loop() -> None:
    resized: list[bytes] = []
    idle = asyncio.Event()

    async def worker(q: BrokerQueue) -> None:
        while True:
            jobs = await q.dequeue("resize_image", batch_size=5)
            if not jobs:
                idle.set()
                await asyncio.Event().wait()  # documented as a sleep; a test waits for no clock
            for job in jobs:
                async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30)):
                    resized.append(job.payload)
                await q.ack(job.id)

    async with BrokerQueue(InMemoryStorage()) as q:
        for n in range(7):
            await q.enqueue("resize_image", payload=b"image %d" % n, priority=0)
        working = asyncio.create_task(worker(q))
        await idle.wait()
        working.cancel()
        assert (await q.read_state()).jobs == ()

    assert resized == [b"image %d" % n for n in range(7)]


async def test_urgent_work_goes_first() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("report", b"best effort", priority=10)
        await q.enqueue("report", b"urgent", priority=0)
        assert [job.payload for job in await q.dequeue("report", batch_size=2)] == [b"urgent", b"best effort"]


async def test_a_long_job_that_fails_is_there_again_at_once() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("transcode_video", b"film")
        for fails in (True, False):
            [job] = await q.dequeue("transcode_video")
            try:
                async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30)):
                    if fails:
                        raise RuntimeError("bad frame")
                await q.ack(job.id)
            except RuntimeError:
                await q.nack(job.id)
        assert len((await q.read_state()).jobs) == 0


async def test_direct_queue_needs_no_context_and_sweeps_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    q = DirectQueue(LocalFileSystemStorage("queue.json"))
    job = await q.enqueue("task", b"data")
    [claimed] = await q.dequeue("task")
    assert await q.requeue_stale(timeout=timedelta(minutes=5)) == 0
    await q.ack(claimed.id)
    assert claimed.id == job.id
    assert (tmp_path / "queue.json").exists()


class CountingStorage:
    """A user's own adapter as documented: two methods, no base class."""

    def __init__(self) -> None:
        self.content = b""
        self.writes = 0

    async def read(self) -> tuple[bytes, str | None]:
        return self.content, str(self.writes) if self.writes else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None and if_match != str(self.writes):
            raise CASConflictError("the object has changed")
        self.content = content
        self.writes += 1
        return str(self.writes)


async def test_enqueues_at_once_are_one_write_to_an_adapter_of_ones_own() -> None:
    storage = CountingStorage()
    assert isinstance(storage, ObjectStoragePort)

    async with BrokerQueue(storage) as q:
        await asyncio.gather(*(q.enqueue("task", b"%d" % n) for n in range(3)))

    assert storage.writes == 1


async def test_one_bad_operation_of_a_batch_fails_alone() -> None:
    async with BrokerQueue(InMemoryStorage()) as q:
        await q.enqueue("task", b"waiting")
        added, bad, claimed = await asyncio.gather(
            q.enqueue("task", b"valid"), q.nack("missing"), q.dequeue("task"), return_exceptions=True
        )
        assert isinstance(added, Job)
        assert isinstance(bad, JobNotFoundError)
        assert isinstance(claimed, list)
        assert len(claimed) == 1


async def test_an_ack_of_a_job_that_is_gone_is_safe_to_ignore() -> None:
    q = DirectQueue(InMemoryStorage())
    job = await q.enqueue("task", b"data")
    await q.ack(job.id)
    with pytest.raises(JobNotFoundError) as gone:
        await q.ack(job.id)
    assert gone.value.job_id == job.id
    assert isinstance(gone.value, JQueueError)


async def test_a_job_and_a_state_have_the_documented_fields() -> None:
    async with BrokerQueue(InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')) as q:
        added = await q.enqueue("send", b"data", 4)
        [job] = await q.dequeue(None, batch_size=1)
        state = await q.read_state()

    assert (job.id, job.entrypoint, job.payload, job.priority) == (added.id, "send", b"data", 4)
    assert (added.status, job.status) == (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
    assert added.heartbeat_at is None
    assert job.heartbeat_at is not None
    assert job.created_at.tzinfo is UTC
    with pytest.raises(ValueError, match="frozen"):
        job.priority = 0
    assert (state.jobs, state.version) == ((job,), 2)
    assert (state.queued_jobs(), state.in_progress_jobs()) == ((), (job,))
    assert (state.find(job.id), state.find("other")) == (job, None)


async def test_metrics_from_a_state() -> None:
    async def collect_metrics(q: BrokerQueue) -> dict[str, float]:
        state = await q.read_state()
        now = datetime.now(UTC)  # noqa: TID251 (as documented)
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
        await q.enqueue("task", b"1")
        await q.enqueue("task", b"2")
        await q.dequeue("task")
        metrics = await collect_metrics(q)

    assert (metrics["queue_depth"], metrics["in_progress"], metrics["version"]) == (1, 1, 3)
    assert 0 <= metrics["oldest_queued_age_s"] < 60


async def test_two_programs_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    async with BrokerQueue(LocalFileSystemStorage(path)) as web, BrokerQueue(LocalFileSystemStorage(path)) as worker:
        await asyncio.gather(*(web.enqueue("task", b"%d" % n) for n in range(10)))
        jobs = await worker.dequeue("task", batch_size=10)
        await asyncio.gather(*(worker.ack(job.id) for job in jobs))
        assert len(jobs) == 10
        assert (await web.read_state()).jobs == ()


async def test_a_worker_that_was_cut_off_finds_its_job_gone() -> None:
    """The documented partition: its heartbeats fail, another worker takes over, and its own ack is a no-op."""
    shared, reachable = InMemoryStorage(), True

    class Partitioned:
        async def read(self) -> tuple[bytes, str | None]:
            if not reachable:
                raise StorageError("no route to the storage", OSError("unreachable"))
            return await shared.read()

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            if not reachable:
                raise StorageError("no route to the storage", OSError("unreachable"))
            return await shared.write(content, if_match)

    away, here = DirectQueue(Partitioned()), DirectQueue(shared)
    await away.enqueue("task", b"data")
    [job] = await away.dequeue("task")
    reachable = False
    assert await here.requeue_stale(timedelta(0)) == 1
    [again] = await here.dequeue("task")
    reachable = True

    with pytest.raises(JobNotFoundError):
        await away.ack(job.id)
    assert [one.id for one in (await here.read_state()).in_progress_jobs()] == [again.id]
    await here.ack(again.id)
    with pytest.raises(JobNotFoundError):
        await away.ack(job.id)
