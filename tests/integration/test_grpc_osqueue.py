"""osqueue's own service, called by a client that was made from osqueue's proto file and knows nothing of casque."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from casque.errors import NoLeaderError, QueueLedError
from casque.testing.hosting import FixedHost, leading
from casque.transport.grpc.osqueue import DATA_MAX
from casque.types import JobSpec, JobState
from tests.integration.shell import casque
from tests.support.over_grpc import serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pb(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """What protoc makes for somebody who has the proto file and nothing else."""
    made = tmp_path_factory.mktemp("osqueue")
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={made}",
            "osqueue/v1/queue.proto",
        ],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location("osqueue_client_pb2", made / "osqueue" / "v1" / "queue_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Client:
    def __init__(self, pb: ModuleType, channel: grpc.aio.Channel) -> None:
        self._pb = pb
        self._channel = channel

    async def call(self, method: str, **fields: Any) -> Any:
        request, response = getattr(self._pb, f"{method}Request"), getattr(self._pb, f"{method}Response")
        return await self._channel.unary_unary(
            f"/osqueue.v1.QueueService/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(request(**fields), timeout=30)

    async def refused(self, method: str, **fields: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(method, **fields)
        code: grpc.StatusCode = raised.value.code()
        return code


@asynccontextmanager
async def clients(pb: ModuleType, host: FixedHost, count: int = 1, **options: Any) -> AsyncIterator[list[Client]]:
    """Each on a connection of its own."""
    async with serving(host, **options) as server:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", own) for _ in range(count)]
        try:
            yield [Client(pb, channel) for channel in channels]
        finally:
            for channel in channels:
                await channel.close()


async def test_a_job_is_pushed_claimed_kept_alive_and_completed(pb: ModuleType) -> None:
    async with leading("memory://osqueue-life") as host, clients(pb, host) as [client]:
        pushed = await client.call("Push", data=b'{"to": "ada"}')

        claimed = await client.call("Claim", worker_id="w-1")
        await client.call("Heartbeat", job_id=claimed.job_id, worker_id="w-1")
        await client.call("Complete", job_id=claimed.job_id, worker_id="w-1")

        assert (claimed.job_id, claimed.data, claimed.empty) == (pushed.job_id, b'{"to": "ada"}', False)
        assert (await client.call("Claim", worker_id="w-1")).empty
        assert (await host.queue.stats()).totals.done == 1


async def test_jobs_come_in_the_order_they_were_pushed(pb: ModuleType) -> None:
    async with leading("memory://osqueue-order") as host, clients(pb, host) as [client]:
        pushed = [(await client.call("Push", data=b"%d" % n)).job_id for n in range(20)]

        claimed = [(await client.call("Claim", worker_id=f"w-{n % 3}")).job_id for n in range(20)]

        assert claimed == pushed


async def test_a_client_of_osqueue_goes_on_with_jobs_that_were_imported_from_it(pb: ModuleType, tmp_path: Path) -> None:
    file, url = tmp_path / "osqueue.json", (tmp_path / "queue").as_uri()
    file.write_text("""{"broker": "host-1:7", "jobs": [
      {"id": "b7c9", "data": "eyJ0byI6ICJhZGEifQ==", "status": "in_progress", "worker_id": "w-1", "attempts": 1,
       "heartbeat_at": "2026-02-15T10:00:05Z", "created_at": "2026-02-15T10:00:00Z"}]}""")
    await asyncio.to_thread(casque, "queue", "import", str(file), url)

    async with leading(url) as host, clients(pb, host) as [client]:
        claimed = await client.call("Claim", worker_id="w-1")
        await client.call("Complete", job_id="b7c9", worker_id="w-1")

        assert (claimed.job_id, claimed.data) == ("b7c9", b'{"to": "ada"}')
        assert (await host.queue.stats()).totals.done == 1


async def test_an_empty_queue_says_so_at_once(pb: ModuleType) -> None:
    async with leading("memory://osqueue-empty") as host, clients(pb, host) as [client]:
        before = await host.queue.stats()

        claimed = await client.call("Claim", worker_id="w-1")

        assert (claimed.empty, claimed.job_id, claimed.data) == (True, "", b"")
        assert await host.queue.stats() == before


@pytest.mark.parametrize("method", ["Heartbeat", "Complete"])
async def test_an_unknown_job_is_not_found(pb: ModuleType, method: str) -> None:
    async with leading("memory://osqueue-unknown") as host, clients(pb, host) as [client]:
        assert await client.refused(method, job_id="nobody", worker_id="w-1") is grpc.StatusCode.NOT_FOUND


async def test_a_job_that_is_completed_is_not_found_again(pb: ModuleType) -> None:
    async with leading("memory://osqueue-twice") as host, clients(pb, host) as [client]:
        await client.call("Push", data=b"1")
        job_id = (await client.call("Claim", worker_id="w-1")).job_id
        await client.call("Complete", job_id=job_id, worker_id="w-1")

        assert await client.refused("Complete", job_id=job_id, worker_id="w-1") is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("method", ["Heartbeat", "Complete"])
async def test_somebody_elses_job_is_refused_and_stays_as_it_is(pb: ModuleType, method: str) -> None:
    async with leading("memory://osqueue-wrong") as host, clients(pb, host) as [client]:
        job_id = (await client.call("Push", data=b"1")).job_id
        assert await client.refused(method, job_id=job_id, worker_id="w-2") is grpc.StatusCode.FAILED_PRECONDITION
        await client.call("Claim", worker_id="w-1")
        held = await host.queue.find(job_id)

        for worker in ("w-2", ""):
            code = await client.refused(method, job_id=job_id, worker_id=worker)
            assert code is grpc.StatusCode.FAILED_PRECONDITION

        assert await host.queue.find(job_id) == held


async def test_a_worker_that_is_silent_loses_its_job_to_the_next(pb: ModuleType) -> None:
    async with leading("memory://osqueue-stale") as host, clients(pb, host, osqueue_lease_ms=20) as [client]:
        job_id = (await client.call("Push", data=b"1")).job_id
        await client.call("Claim", worker_id="sleeper")
        [expired] = await host.queue.dequeue(entrypoints=("osqueue",), limit=1, wait_s=60)  # when the lease is over
        await host.queue.give_back(expired.id, token=expired.token)

        again = await client.call("Claim", worker_id="next")

        assert again.job_id == job_id
        code = await client.refused("Complete", job_id=job_id, worker_id="sleeper")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        record = await host.queue.find(job_id)
        assert record is not None
        assert (record.worker, record.spec.max_attempts) == ("next", None)


async def test_a_client_without_a_name_is_known_by_its_connection(pb: ModuleType) -> None:
    async with leading("memory://osqueue-nameless") as host, clients(pb, host, 2) as [one, other]:
        job_id = (await one.call("Push", data=b"1")).job_id
        assert (await one.call("Claim")).job_id == job_id

        assert await other.refused("Heartbeat", job_id=job_id) is grpc.StatusCode.FAILED_PRECONDITION
        await one.call("Heartbeat", job_id=job_id)
        record = await host.queue.find(job_id)
        assert record is not None
        assert record.worker
        await one.call("Complete", job_id=job_id)

        assert (await host.queue.stats()).totals.done == 1


async def test_many_workers_share_the_jobs_and_none_is_given_twice(pb: ModuleType) -> None:
    async with leading("memory://osqueue-many") as host, clients(pb, host, 4) as several:
        pushed = {(await several[n % 4].call("Push", data=b"%d" % n)).job_id for n in range(60)}
        done: list[str] = []

        async def work(client: Client, name: str) -> None:
            while not (claimed := await client.call("Claim", worker_id=name)).empty:
                await client.call("Complete", job_id=claimed.job_id, worker_id=name)
                done.append(claimed.job_id)

        await asyncio.gather(*(work(client, f"w-{n}") for n, client in enumerate(several)))

        assert len(done) == 60
        assert set(done) == pushed


async def test_jobs_of_other_entrypoints_are_not_osqueues(pb: ModuleType) -> None:
    async with leading("memory://osqueue-others") as host, clients(pb, host) as [client]:
        await host.queue.enqueue([JobSpec("mine", "send", b"1")])
        [mine] = await host.queue.dequeue(entrypoints=None, limit=1, worker="w-1")

        assert (await client.call("Claim", worker_id="w-1")).empty
        assert await client.refused("Complete", job_id="mine", worker_id="w-1") is grpc.StatusCode.NOT_FOUND
        assert await host.queue.find("mine") == mine
        assert mine.state is JobState.RUNNING


async def test_a_broker_that_does_not_lead_is_unavailable(pb: ModuleType) -> None:
    async with leading("memory://osqueue-led", stale_timeout=timedelta(seconds=9)) as host, clients(pb, host) as [one]:
        for refusal in (QueueLedError("10.0.0.7:7700"), NoLeaderError()):
            host.refusal = refusal
            for method in ("Push", "Claim", "Heartbeat", "Complete"):
                assert await one.refused(method) is grpc.StatusCode.UNAVAILABLE


async def test_what_a_client_could_never_claim_is_refused_when_it_is_pushed(pb: ModuleType) -> None:
    """gRPC's clients receive at most 4 MiB by default."""
    async with leading("memory://osqueue-large") as host, clients(pb, host) as [client]:
        largest = b"x" * DATA_MAX
        assert await client.refused("Push", data=largest + b"x") is grpc.StatusCode.INVALID_ARGUMENT
        assert (await client.call("Claim", worker_id="w")).empty
        pushed = await client.call("Push", data=largest)
        claimed = await client.call("Claim", worker_id="w")
        assert (claimed.job_id, claimed.data) == (pushed.job_id, largest)
