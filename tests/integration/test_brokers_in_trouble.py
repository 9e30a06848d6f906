"""Brokers that were set up wrongly, or whose store lets them down: each says what is wrong, and recovers if it can."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from casque import CorruptQueueError, NoLeaderError, Queue, StorageError, StoreAccessError
from casque.app import BrokerServer, ServeOptions
from casque.broker.broker import Broker
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import SystemClock, new_nonce, system_random
from casque.service import Role, Standing
from casque.settings import BrokerSettings
from casque.storage.cloud import CloudStore
from casque.storage.files import Temp
from casque.transport.http.monitoring import is_ready
from casque.transport.listening import Address
from casque.types import JobSpec
from tests.integration.test_serve_command import FREE, serving
from tests.support.servers import Server

QUICK = BrokerSettings(heartbeat=timedelta(seconds=0.2), lease=timedelta(seconds=1), poll=timedelta(seconds=0.1))
IMPATIENT = DEFAULTS.with_changes({"storage_patience": timedelta(seconds=0.5)})


@asynccontextmanager
async def broker_on(url: str, **more: Any) -> AsyncIterator[BrokerServer]:
    listen = Address.parse("127.0.0.1:0")
    server = BrokerServer(ServeOptions(url=url, listen=listen, broker=QUICK, queue=IMPATIENT, **more))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def until(host: BrokerServer | Broker, fits: Callable[[Standing], bool]) -> Standing:
    """Until the broker stands so. The test's own timeout is the limit."""
    while not fits(host.standing()):
        await host.changed()
    return host.standing()


def has_problem(text: str) -> Callable[[Standing], bool]:
    return lambda standing: standing.problem is not None and text in standing.problem


def leads_well(standing: Standing) -> bool:
    return standing.role is Role.LEADER and standing.problem is None


# --- Set up wrongly ---


def test_two_brokers_that_advertise_one_address_are_told_which_and_what_to_change(tmp_path: Path) -> None:
    timing = ["--heartbeat", "0.2", "--lease", "1", "--advertise", "127.0.0.1:7799"]
    with serving(tmp_path.as_uri(), *FREE, *timing) as first:
        first.until("role +leader")
        with serving(tmp_path.as_uri(), *FREE, *timing) as second:
            said = second.until("trouble: .*")[0]
            assert "another broker that is alive advertises 127.0.0.1:7799 too" in said
            assert "Give each broker an address of its own" in said
            assert second.end()[0] == 0
        assert first.end()[0] == 0


async def test_two_clusters_on_one_bucket_become_one_with_one_leader(tmp_path: Path) -> None:
    """Whoever mixes up two buckets finds out from the first lines: which queue is served, and who leads it."""
    with serving(tmp_path.as_uri(), *FREE, "--no-http") as ours:
        ours.until("role +leader, epoch 1")
        leader = ours.lines[1].split()[1]
        with serving(tmp_path.as_uri(), *FREE, "--no-http", "--lease", "30") as theirs:
            theirs.until(rf"role +standby: {re.escape(leader)} leads, epoch 1")
            assert theirs.lines[0].endswith(f"serves {tmp_path.as_uri()}")
            other = theirs.lines[1].split()[1]
            # Callers of either cluster reach the one leader; nothing is split between two.
            for address in (leader, other):
                async with Queue.open(f"grpc://{address}") as queue:
                    await queue.enqueue("send", address.encode())
            async with Queue.open(tmp_path.as_uri(), via="broker") as queue:
                assert (await queue.stats()).totals.ready == 2
            assert theirs.end()[0] == 0
        assert ours.end()[0] == 0


# --- A store that lets it down ---


async def test_a_bucket_that_goes_while_a_broker_runs_is_missed_by_name_and_may_come_back(s3_server: Server) -> None:
    bucket = f"gone-{new_nonce(system_random())}"
    s3_server.make_bucket(bucket)
    s3 = s3_client(s3_server)
    async with broker_on(f"s3://{bucket}/queue", store_options=s3_server.options) as broker:
        async with Queue.open(f"grpc://{broker.address}") as queue:
            await queue.enqueue("send", b"1")
            kept = s3.get_object(Bucket=bucket, Key="queue/queue.json")["Body"].read()
            segments = {
                found["Key"]: s3.get_object(Bucket=bucket, Key=found["Key"])["Body"].read()
                for found in s3.list_objects_v2(Bucket=bucket, Prefix="queue/log/")["Contents"]
            }
            await asyncio.to_thread(delete_bucket, s3, bucket)
            standing = await until(broker, lambda standing: standing.problem is not None)
            assert "bucket" in str(standing.problem) or "queue.json" in str(standing.problem)
        with pytest.raises((StorageError, NoLeaderError, CorruptQueueError)):
            await broker.service().enqueue([JobSpec("2", "send", b"")])

        # Restored from a backup, it is served again, with whatever the backup had.
        s3_server.make_bucket(bucket)
        for key, body in {**segments, "queue/queue.json": kept}.items():
            s3.put_object(Bucket=bucket, Key=key, Body=body)
        await until(broker, leads_well)
        assert (await broker.service().stats()).totals.ready == 1


async def test_a_bucket_that_was_never_there_is_named_and_nothing_is_served(s3_server: Server) -> None:
    with pytest.raises(StoreAccessError, match="there is no bucket 'never-made'"):
        async with broker_on("s3://never-made/queue", store_options=s3_server.options):
            pytest.fail("it started")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
async def test_a_full_disk_is_named_and_work_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    timing = ["--heartbeat", "0.2", "--lease", "1", "--setting", "storage_patience=0.5"]
    with serving(tmp_path.as_uri(), *FREE, "--no-http", *timing) as broker:
        broker.until("role +leader, epoch 1")
        address = broker.lines[1].split()[1]
        async with Queue.open(f"grpc://{address}") as queue:
            await queue.enqueue("send", b"1")
            # As good as a full disk: no file of this process may grow.
            _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            with pytest.raises(StorageError, match="File too large"):
                await queue.enqueue("send", b"2")
            await asyncio.to_thread(broker.until, "trouble: .*File too large")
            assert (await queue.stats()).totals.ready == 1, "what can be read is still answered"
            resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
            await asyncio.to_thread(broker.until, r"\d leader, epoch \d+$")
            await queue.enqueue("send", b"3")
            assert [job.payload for job in await queue.jobs()] == [b"1", b"3"]
        assert broker.end()[0] == 0


@pytest.mark.parametrize("shards", [0, 2])
async def test_readyz_says_that_the_disk_is_full_and_the_log_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    """Nearly full: the head, which shows that the broker lives, still fits."""
    if shards:
        parts = Parts(as_store(tmp_path.as_uri()), IMPATIENT)
        assert await parts.builder().create(shards)
        await parts.store.close()
    async with broker_on(tmp_path.as_uri()) as broker:
        await until(broker, leads_well)
        write = Temp.write

        def refuse(temp: Temp, body: bytes, *, mode: int | None = None) -> None:
            if len(body) > 10_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(temp, body, mode=mode)

        with monkeypatch.context() as patch:
            patch.setattr(Temp, "write", refuse)
            for n in range(3):
                with pytest.raises(StorageError, match="No space left"):
                    await broker.service().enqueue([JobSpec(f"{n}", "send", bytes(20_000), zone="acme")])
            await until_ready(broker, lambda standing: "No space left" in str(standing.problem))
            assert not is_ready(broker.standing())
        assert [record.message for record in caplog.records if "commits fail" in record.message][1:] == []

        await broker.service().enqueue([JobSpec("4", "send", bytes(20_000), zone="acme")])
        await until_ready(broker, lambda standing: standing.problem is None)
        assert is_ready(broker.standing())


async def until_ready(broker: BrokerServer, holds: Callable[[Standing], bool]) -> None:
    """A ring's broker looks at its shards now and then."""
    async with asyncio.timeout(30):
        while not holds(broker.standing()):
            await SystemClock().sleep(0.02)


async def test_credentials_that_expire_are_named_and_a_leader_recovers_when_they_are_renewed(
    s3_server: Server,
) -> None:
    clock = SystemClock()
    options = dict(s3_server.options)
    right = {"access_key_id": options.pop("access_key_id"), "secret_access_key": options.pop("secret_access_key")}
    wrong = {**right, "secret_access_key": "expired"}
    given = right

    def credentials() -> dict[str, Any]:
        soon = datetime.fromtimestamp(clock.wall_ms() / 1000 + 1, UTC)  # so soon that it asks again each time
        return {**given, "expires_at": soon}

    store = CloudStore("s3", s3_server.bucket, new_nonce(system_random()), options=options, credentials=credentials)
    parts = Parts(store, IMPATIENT)
    broker = Broker(parts.committer(), parts, parts.history(), address="a:1", settings=QUICK)
    running = asyncio.create_task(broker.run())
    await broker.settled()
    assert leads_well(broker.standing())
    await broker.service().enqueue([JobSpec("1", "send", b"")])

    given = wrong
    await until(broker, has_problem("Check the credentials"))
    with pytest.raises(StoreAccessError, match="Check the credentials"):
        await broker.service().enqueue([JobSpec("2", "send", b"")])
    assert broker.standing().role is Role.LEADER, "no reason to leave: nobody else is there"

    given = right
    await until(broker, leads_well)
    assert broker.standing().epoch == 1
    await broker.service().enqueue([JobSpec("3", "send", b"")])
    assert [job.id for job in await broker.service().jobs()] == ["1", "3"]
    broker.stop()
    await running
    await store.close()


# --- Garbage ---


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_garbage_in_queue_json_is_named_while_it_lies_there_and_not_written_over(
    tmp_path: Path, layout: str
) -> None:
    head = tmp_path / "queue.json"
    async with broker_on(tmp_path.as_uri(), layout=layout) as broker:
        async with Queue.open(f"grpc://{broker.address}") as queue:
            await queue.enqueue("send", b"1")
        shutil.copy(head, tmp_path / "backup")
        replace_file(head, b"garbage")
        standing = await until(broker, lambda standing: standing.problem is not None)
        assert "queue.json" in str(standing.problem)
        assert "restore the object from a backup" in str(standing.problem)
        with pytest.raises(CorruptQueueError):
            broker.service()  # it cannot read the queue, so it serves none
        assert head.read_bytes() == b"garbage"
        replace_file(head, (tmp_path / "backup").read_bytes())
        await until(broker, leads_well)
        assert (await broker.service().stats()).totals.ready == 1


@pytest.mark.parametrize("way", ["grpc", "http"])
async def test_callers_are_told_at_once_that_queue_json_was_deleted_and_served_when_it_is_restored(
    tmp_path: Path, way: str
) -> None:
    head = tmp_path / "queue.json"
    async with broker_on(tmp_path.as_uri(), http=Address.parse("127.0.0.1:0")) as broker:
        url = f"grpc://{broker.address}" if way == "grpc" else f"http://127.0.0.1:{broker.http_port}"
        async with Queue.open(url) as queue:
            await queue.enqueue("send", b"1")
            head.rename(tmp_path / "backup")
            await until(broker, lambda standing: standing.role is Role.STANDBY and standing.problem is not None)
            with pytest.raises(CorruptQueueError, match=r"queue\.json: it was deleted.*Restore it from a backup"):
                await queue.enqueue("send", b"2")
            shown = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "casque.cli", "enqueue", url, "send", "3"), stderr=asyncio.subprocess.PIPE
            )
            said = (await shown.communicate())[1].decode()
            assert "damaged queue.json it was deleted while this queue was open" in " ".join(said.split())
            assert shown.returncode == 1
            (tmp_path / "backup").rename(head)
            await until(broker, leads_well)
            assert [job.payload for job in await queue.jobs()] == [b"1"]


def test_garbage_in_queue_json_at_the_start_ends_it_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(b"garbage")
    with serving(tmp_path.as_uri(), *FREE) as broker:
        out, error = broker.process.communicate()
        assert (broker.process.returncode, out) == (1, "")
        assert "the queue is damaged: queue.json: " in error
        assert "is not a queue that casque or jqueue wrote" in error
        assert "restore the object from a backup" in error
    assert (tmp_path / "queue.json").read_bytes() == b"garbage"


def replace_file(path: Path, body: bytes) -> None:
    """At once, as an editor or a restore would."""
    new = path.with_name(".new")
    new.write_bytes(body)
    new.rename(path)


def s3_client(server: Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.options["region"],
        aws_access_key_id=server.options["access_key_id"],
        aws_secret_access_key=server.options["secret_access_key"],
    )


def delete_bucket(s3: Any, bucket: str) -> None:
    """With all that is in it. Whoever writes to it meanwhile must not keep it alive."""
    while True:
        for found in s3.list_objects_v2(Bucket=bucket).get("Contents", []):
            s3.delete_object(Bucket=bucket, Key=found["Key"])
        try:
            s3.delete_bucket(Bucket=bucket)
        except s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "BucketNotEmpty":
                raise
        else:
            return
