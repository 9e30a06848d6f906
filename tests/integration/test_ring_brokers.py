"""A ring behind brokers with tokens and TLS, and the commands that find these brokers through the bucket."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme

from casque import (
    InvalidInputError,
    JobNotFoundError,
    NotAllowedError,
    NotAuthenticatedError,
    Queue,
    QueueDrainingError,
    QueueLedError,
)
from casque.app import BrokerServer, Peers, ServeOptions
from casque.client.connecting import ClientTlsFiles, through_brokers
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs, Stager
from casque.clock import SystemClock
from casque.errors import RingError
from casque.ring.broker import RingBroker
from casque.service import EventKind, Lease, Outcome
from casque.service.requests import Reschedule
from casque.state.ring import home
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.credentials import ClientTls
from casque.transport.grpc.peer import GrpcShard
from casque.transport.scopes import Scope
from casque.transport.tls import TlsFiles
from casque.types import Gate, JobRecord, JobSpec, JobState, StagedPart, ZoneRules
from tests.contract.test_service_ring_brokers import FREE, SOON, brokers
from tests.integration.shell import casque

pytestmark = pytest.mark.asyncio

NOW = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)


async def a_ring(place: str, shards: int = 4) -> None:
    store = as_store(place)
    await Parts(store, DEFAULTS).builder().create(shards)
    await store.close()


async def shared(*servers: BrokerServer) -> None:
    for server in servers:
        while server.standing().led != server.standing().shards // len(servers):
            await server.changed()


async def test_brokers_of_a_ring_show_each_other_a_token_and_a_certificate(tmp_path: Path) -> None:
    place, file = (tmp_path / "queue").as_uri(), tmp_path / "tokens.json"
    await a_ring(place)
    admin = tokenfile.add(file, name="office", scopes=[Scope.ADMIN], created=NOW)
    peer = tokenfile.add(file, name="brokers", scopes=[Scope.PEER], created=NOW)
    producer = tokenfile.add(file, name="shop", scopes=[Scope.PRODUCE], created=NOW, zones=["acme"])
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ClientTls(
        roots=authority.cert_pem.bytes(), key=own.private_key_pem.bytes(), chain=own.cert_chain_pems[0].bytes()
    )

    def a_broker(token: str | None) -> BrokerServer:
        return BrokerServer(
            ServeOptions(
                url=place,
                listen=FREE,
                tls=TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem").load(),
                tokens=TokenBook(file),
                broker=SOON,
                peers=Peers(token=token, tls=tls),
            )
        )

    for token, why in (
        (None, "CASQUE_PEER_TOKEN"),
        ("casque_nobody", "no good"),
        (producer, "scope peer"),
        (admin, "scope peer, which admin does not include.*casque token new"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            await a_broker(token).start()
    one, other = a_broker(peer), a_broker(peer)
    await one.start()
    await other.start()
    try:
        await shared(one, other)
        files = ClientTlsFiles(ca=tmp_path / "ca.pem", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
        async with Queue.open(f"grpcs://{one.address}", token=producer, tls=files) as shop:
            await shop.enqueue("send", b"1", zone="acme")
            with pytest.raises(NotAllowedError):
                await shop.enqueue("send", b"2", zone="umbrella")
        async with Queue.open(place, via="broker", token=admin, tls=files) as office:
            for n in range(8):
                await office.enqueue("send", b"", zone=f"z{n}")
            assert (await office.stats()).totals.ready == 9
        async with Queue.open(f"grpcs://{one.address}", token=peer, tls=files) as shop:
            with pytest.raises(NotAllowedError):
                await shop.enqueue("send", b"3", zone="acme")
        for token, refused in ((producer, NotAllowedError), (admin, NotAllowedError), (None, NotAuthenticatedError)):
            stranger = GrpcShard(one.address, 0, token=token, tls=tls)
            with pytest.raises(refused):
                await stranger.adopt(99, 1)
            await stranger.close()
    finally:
        await one.stop()
        await other.stop()


async def test_a_limited_token_acts_on_its_own_jobs_in_every_shard_and_on_no_others(tmp_path: Path) -> None:
    """Whichever broker leads the shard: it is the one that carries a call out that judges whose job it is."""
    place, file = (tmp_path / "queue").as_uri(), tmp_path / "tokens.json"
    await a_ring(place)
    tokens = {
        name: tokenfile.add(file, name=name, scopes=[scope], created=NOW, zones=zones)
        for name, scope, zones in (
            ("peer", Scope.PEER, None),
            ("office", Scope.ADMIN, None),
            ("tenant", Scope.ADMIN, [f"z{n}" for n in range(8)]),
        )
    }
    options = ServeOptions(
        url=place, listen=FREE, tokens=TokenBook(file), broker=SOON, peers=Peers(token=tokens["peer"])
    )
    one, other = BrokerServer(options), BrokerServer(options)
    await one.start()
    await other.start()
    tenant, office = (GrpcService(one.address, token=tokens[name]) for name in ("tenant", "office"))
    try:
        await shared(one, other)
        # Zones in every shard, so that half of them are led by the other broker.
        mine = [job.id for n in range(8) for job in await tenant.enqueue([JobSpec(f"m{n}", "send", b"", zone=f"z{n}")])]
        theirs = [f"t{n}" for n in range(8)]
        for n, job_id in enumerate(theirs):
            await office.enqueue([JobSpec(job_id, "send", b"", zone=f"other{n}")])
        claimed = {job.id: job.token for job in await office.dequeue(entrypoints=None, limit=16)}
        assert sorted(claimed) == sorted([*mine, *theirs])

        for job_id in theirs:
            token = claimed[job_id]
            for refused in (
                tenant.ack(job_id, token=token),
                tenant.ack(job_id),
                tenant.nack(job_id, token=token),
                tenant.heartbeat(job_id, token=token),
                tenant.cancel(job_id),
                tenant.retry(job_id),
                tenant.call(Reschedule(job_id, priority=1)),
            ):
                with pytest.raises(JobNotFoundError):
                    await refused
            await tenant.give_back(job_id, token=token)
        outcomes = [Outcome(job_id, token) for job_id, token in claimed.items()]
        beaten = await tenant.heartbeats([Lease(job_id, token) for job_id, token in claimed.items()])
        assert {one.id for one in beaten if isinstance(one, JobRecord)} == set(mine)
        settled = zip(claimed, await tenant.settle(outcomes), strict=True)
        assert {job_id: type(answer) for job_id, answer in settled} == {
            job_id: type(None) if job_id in mine else JobNotFoundError for job_id in claimed
        }

        left = await office.jobs()
        assert {(job.id, job.state) for job in left} == {(job_id, JobState.RUNNING) for job_id in theirs}
    finally:
        await tenant.close()
        await office.close()
        await one.stop()
        await other.stop()


async def test_what_brokers_ask_each_other_is_not_for_clients(tmp_path: Path) -> None:
    server = BrokerServer(ServeOptions(url=(tmp_path / "plain").as_uri(), listen=FREE))
    await server.start()
    shard = GrpcShard(server.address, 0)
    try:
        with pytest.raises(InvalidInputError, match="without shards"):
            await shard.stats()
    finally:
        await shard.close()
        await server.stop()


async def test_what_a_broker_sends_to_another_is_checked_like_what_comes_from_outside(tmp_path: Path) -> None:
    """A commit of a shard is read by every leader to come: one that cannot be read would be its end."""
    place = (tmp_path / "queue").as_uri()
    async with brokers(place, 1) as [server]:
        zone = next(f"z{n}" for n in range(99) if home(f"z{n}", 4) == 0)
        shard = GrpcShard(server.address, 0)
        good = JobSpec("1", "send", b"", zone=zone)
        bad: list[tuple[str, dict[str, Any]]] = [
            ("adopt", {"generation": -1, "size": 4}),
            ("adopt", {"generation": 2**60, "size": 4}),
            ("adopt", {"generation": 2, "size": 0}),
            ("adopt", {"generation": 2, "size": 4}),  # of a ring that there is not
            ("adopt", {"generation": 1, "size": 64}),
            ("copy_gate", {"gate": Gate.PAUSED, "entrypoint": "x" * 10_000, "since": 0}),
            ("copy_zone", {"zone": "z", "rules": ZoneRules(float("nan")), "since": 0}),
            ("copy_zone", {"zone": "z", "rules": ZoneRules(1.0, -4), "since": 0}),
            ("copy_zone", {"zone": "", "rules": ZoneRules(2.0), "since": 0}),
            ("copy_zone", {"zone": "z", "rules": ZoneRules(2.0), "since": -1}),
            ("copy_gate", {"gate": Gate.PAUSED, "entrypoint": None, "since": 2**64}),
            ("known", {"job_ids": ("x",) * 10_001}),
            ("admit", {"source": "s", "batch": -1, "parts": ()}),
            ("admit", {"source": "s", "batch": 1, "parts": (StagedPart("queue.json", "0" * 64, 1, 1),)}),
            ("dequeue", {"entrypoints": None, "limit": 10**9}),
            ("dequeue", {"entrypoints": None, "limit": 1, "lease_ms": -5}),
            ("lease_zone", {"zone": zone, "lease_ms": 0}),
            ("set_zone", {"zone": "z", "rules": ZoneRules(float("inf"))}),
            *(
                ("enqueue", {"specs": [msgspec.structs.replace(good, **wrong)], "generation": 1})
                for wrong in (
                    {"id": ""},
                    {"id": "x" * 10_000},
                    {"entrypoint": ""},
                    {"run_at_ms": 2**62},
                    {"max_attempts": 0},
                    {"headers": {"a": "b" * 1_000_000}},
                    {"blob": "queue.json", "blob_bytes": 10},
                    {"blob": "log/00000000000000000001", "blob_bytes": 10},
                )
            ),
        ]
        try:
            before = await shard.stats()
            for verb, arguments in bad:
                with pytest.raises(InvalidInputError):
                    await getattr(shard, verb)(**arguments)
            assert await shard.stats() == before
            await shard.adopt(1, 4)
            assert [job.id for job in await shard.enqueue([good], generation=1)] == ["1"]
            assert (await shard.known(["1", "2"])).jobs == {"1"}
        finally:
            await shard.close()
    state = await Parts(as_store(place), DEFAULTS).shard(0).read()
    assert list(state.jobs) == ["1"]


async def test_each_broker_counts_the_shards_that_it_leads(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()
    async with brokers(place, 2) as servers:
        async with Queue.open(place, via="broker") as queue:
            for n in range(20):
                await queue.enqueue("send", b"", zone=f"z{n}")
        async with httpx.AsyncClient() as client:
            urls = [f"http://127.0.0.1:{server.http_port}/metrics" for server in servers]
            scraped = [(await client.get(url)).text for url in urls]

    lines = [line.split() for text in scraped for line in text.splitlines()]
    assert sum(int(line[1]) for line in lines if line[0] == 'casque_jobs{state="ready"}') == 20
    assert all("casque_ring_shards 4\n" in text and "casque_ring_shards_led 2\n" in text for text in scraped)


async def test_a_resize_while_brokers_lead_goes_through_them(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()
    async with brokers(place, 2) as servers, Queue.open(place, via="broker") as queue:
        await queue.set_zone("acme", weight=3)
        parts = Parts(as_store(place), DEFAULTS)
        await parts.builder(through_brokers(parts)).resize(8)
        for server in servers:
            while server.standing().led != 4:
                await server.changed()
        for n in range(40):
            await queue.enqueue("send", b"", zone=f"z{n}")
        totals = (await queue.stats()).totals
    states = [await parts.shard(token).read() for token in range(8)]

    assert totals.ready == 40
    assert all(state.rules["acme"].weight == 3 for state in states)
    assert sum(bool(state.jobs) for state in states) > 4


@pytest.mark.parametrize("scheme", ["grpc", "http"])
async def test_staged_jobs_are_admitted_through_brokers_each_once_also_when_the_ring_grows(
    tmp_path: Path, scheme: str
) -> None:
    place = (tmp_path / "queue").as_uri()

    async def staged(name: str) -> StagedPart:
        jobs = StagedJobs([f"{name}-{zone}" for zone in range(12)], "send", b"", zones=[f"z{n}" for n in range(12)])
        with Stager(place, txn=name) as stager:
            return await asyncio.to_thread(stager.stage, jobs)

    async with brokers(place, 2) as servers:
        ports = [server.grpc_port if scheme == "grpc" else server.http_port for server in servers]
        async with Queue.open(f"{scheme}://127.0.0.1:{ports[0]}") as queue:
            first = await queue.admit("nightly", 1, [await staged("a")])
            with pytest.raises(InvalidInputError, match="already in the queue"):
                await queue.admit("nightly", 2, [await staged("a")])
            parts = Parts(as_store(place), DEFAULTS)
            await parts.builder(through_brokers(parts)).resize(6)
            second = await queue.admit("nightly", 2, [await staged("b")])
        async with Queue.open(f"{scheme}://127.0.0.1:{ports[1]}") as queue:
            again = await queue.admit("nightly", 2, [await staged("b")])
            await queue.enqueue("send", b"", zone="strict", fifo=True)
            strict = StagedJobs(["c"], "send", b"", zones=["strict"])
            with Stager(place, txn="c") as stager:
                part = await asyncio.to_thread(stager.stage, strict)
            with pytest.raises(InvalidInputError, match="FIFO"):
                await queue.admit("nightly", 3, [part])
            await queue.drain("send")
            with pytest.raises(QueueDrainingError):
                await queue.admit("nightly", 3, [await staged("d")])
            await queue.resume("send")
            claimed = await queue.dequeue("send", batch_size=100)
            answers = await queue.settle(claimed)
            # Each shard has positions of its own, which one number cannot tell over a wire.
            with pytest.raises(RingError, match="by its own URL"):
                async for _ in queue.events(from_position=0, follow=False):
                    pass
    told = [event async for event in Queue.open(place).events(from_position=0, follow=False)]

    assert [(one.jobs, one.repeated) for one in (first, second, again)] == [(12, False), (12, False), (12, True)]
    assert {job.id for job in claimed} > {f"{name}-{n}" for name in "ab" for n in range(12)}
    assert (len(claimed), set(answers)) == (25, {None})
    assert [len((await parts.shard(shard).read()).jobs) for shard in range(6)] == [0] * 6
    assert sum(event.kind is EventKind.ACKED for event in told) == 25


async def test_a_ring_whose_brokers_were_killed_is_released(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()
    await a_ring(place)
    server = BrokerServer(ServeOptions(url=place, listen=FREE, broker=SOON))
    await server.start()
    assert server._running is not None
    # As if it were killed: its shards stay led, and its object stays.
    broker = server._broker
    assert isinstance(broker, RingBroker)
    for taken in broker._seats.values():
        assert taken.task is not None
        taken.seat._committer.leads = False  # type: ignore[attr-defined]
    await server.stop()
    with pytest.raises(QueueLedError):
        async with Queue.open(place) as queue:
            await queue.enqueue("send", b"")

    await asyncio.to_thread(casque, "queue", "release", f"{place}/shards/0000", "--lease", "0.5", ends=2)
    told = await asyncio.to_thread(casque, "queue", "release", place, "--lease", "0.5")

    async with Queue.open(place) as queue:
        await queue.enqueue("send", b"")
    assert server.address in told.output


async def test_a_shard_by_itself_is_not_served(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()
    await a_ring(place)

    with pytest.raises(InvalidInputError, match="serve the ring"):
        await BrokerServer(ServeOptions(url=f"{place}/shards/0000", listen=FREE)).start()


async def test_commands_find_the_brokers_of_a_ring_by_themselves(tmp_path: Path) -> None:
    place = (tmp_path / "queue").as_uri()
    async with brokers(place, 1) as [server]:
        await asyncio.to_thread(casque, "enqueue", place, "send", "hello")
        shown = await asyncio.to_thread(casque, "queue", "info", place)
        await asyncio.to_thread(casque, "queue", "release", place, "--lease", "0.5", ends=1)
        async with Queue.open(f"http://127.0.0.1:{server.http_port}") as queue:
            [job] = await queue.dequeue("send")
    assert job.payload == b"hello"
    assert f"{server.address} (4 shards)" in shown.output
