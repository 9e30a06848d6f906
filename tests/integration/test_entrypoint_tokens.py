"""Tokens that are limited to entrypoints, over both wires: none takes, sees or detects what another has named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from casque import InvalidInputError, ScheduleNotFoundError
from casque.clock import SystemClock
from casque.service import EventKind, QueueService
from casque.storage.memory import MemoryStore
from casque.testing.hosting import leading
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.border import admit
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.scopes import Scope
from casque.types import JobSpec, ScheduleSpec
from tests.support.over_grpc import calling, serving

NOW = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
Callers = dict[str, QueueService]


@pytest_asyncio.fixture(params=["grpc", "http"])
async def callers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callers]:
    file = tmp_path / "tokens.json"
    tokens = {
        name: tokenfile.add(file, name=name, scopes=[Scope.ADMIN], created=NOW, entrypoints=entrypoints)
        for name, entrypoints in (("mailer", ["mail.*"]), ("biller", ["bill"]), ("office", None))
    }
    door = admit(TokenBook(file))
    async with leading(MemoryStore(), layout="log") as host:
        if request.param == "grpc":
            async with (
                serving(host, admit=door) as server,
                calling(server, token=tokens["mailer"]) as mailer,
                calling(server, token=tokens["biller"]) as biller,
                calling(server, token=tokens["office"]) as office,
            ):
                yield {"mailer": mailer, "biller": biller, "office": office}
            return
        http = HttpServer(host, listen="127.0.0.1:0", admit=door)
        await http.start()
        clients = {name: HttpService(f"http://127.0.0.1:{http.port}", token=token) for name, token in tokens.items()}
        try:
            yield dict(clients)
        finally:
            for client in clients.values():
                await client.close()
            await http.stop(1)


async def test_ids_do_not_meet(callers: Callers) -> None:
    mailer, biller, office = callers["mailer"], callers["biller"], callers["office"]
    [mail] = await mailer.enqueue([JobSpec("order-17", "mail.a", b"mail")])
    [bill] = await biller.enqueue([JobSpec("order-17", "bill", b"bill")])
    [plain] = await office.enqueue([JobSpec("order-17", "bill", b"office")])

    assert (mail.id, bill.id, plain.id) == ("mail.a:~order-17", "bill:~order-17", "order-17")
    with pytest.raises(InvalidInputError, match="already in the queue"):
        await mailer.enqueue([JobSpec("order-17", "mail.a", b"again")])
    assert await mailer.find(bill.id) is None
    assert await mailer.find(plain.id) is None
    # What is in a zone of the same name has another name.
    [zoned] = await office.enqueue([JobSpec("bill::order-17", "bill", b"", zone="bill")])
    assert zoned.id != bill.id


async def test_a_key_cannot_be_taken_from_another(callers: Callers) -> None:
    mailer, biller = callers["mailer"], callers["biller"]
    [taken] = await mailer.enqueue([JobSpec("1", "mail.a", b"first", key="invoice-17")])
    [mine] = await biller.enqueue([JobSpec("2", "bill", b"mine", key="invoice-17")])
    [again] = await biller.enqueue([JobSpec("3", "bill", b"again", key="invoice-17")])

    assert (mine.spec.payload, again.id, mine.spec.key) == (b"mine", mine.id, "invoice-17")
    [claimed] = await biller.dequeue(entrypoints=None, limit=5)
    assert (claimed.id, claimed.spec.key) == (mine.id, "invoice-17")
    await biller.ack(claimed.id, token=claimed.token)
    found = await mailer.find(taken.id)
    assert found is not None
    assert found.spec.key == "invoice-17"


async def test_a_request_id_is_its_callers(callers: Callers) -> None:
    for name, entrypoint in (("mailer", "mail.a"), ("biller", "bill")):
        for _ in range(2):
            [added] = await callers[name].enqueue([JobSpec("x", entrypoint, name.encode())], request_id="order-17")
            assert added.spec.payload == name.encode()
    assert len(await callers["office"].jobs()) == 2


async def test_schedules_and_their_ticks_do_not_meet(callers: Callers) -> None:
    mailer, biller, office = callers["mailer"], callers["biller"], callers["office"]
    for service, entrypoint in ((mailer, "mail.a"), (biller, "bill")):
        shown = await service.set_schedule(ScheduleSpec("nightly", "@daily", JobSpec("", entrypoint, b"")))
        assert shown.name == "nightly"
        assert [one.name for one in await service.schedules()] == ["nightly"]

    # To another of its own entrypoints it moves, and is called as before.
    await mailer.set_schedule(ScheduleSpec("nightly", "@daily", JobSpec("", "mail.b", b"")))
    assert [(one.name, one.spec.job.entrypoint) for one in await mailer.schedules()] == [("nightly", "mail.b")]
    assert len(await office.schedules()) == 2
    await mailer.drop_schedule("nightly")
    with pytest.raises(ScheduleNotFoundError):
        await mailer.pause_schedule("nightly", paused=True)
    assert [one.name for one in await biller.schedules()] == ["nightly"]


async def test_events_are_those_of_its_own_jobs_also_where_an_id_was_anothers(callers: Callers) -> None:
    mailer, office = callers["mailer"], callers["office"]
    await office.enqueue([JobSpec("order-17", "bill", b"secret")])
    [claimed] = await office.dequeue(entrypoints=("bill",), limit=1)
    await office.ack(claimed.id, token=claimed.token, result=b"secret too")
    await office.enqueue([JobSpec("order-17", "mail.a", b"mine")])
    [own] = await mailer.enqueue([JobSpec("order-18", "mail.a", b"own", key="k")])

    events = [event async for event in mailer.events(from_position=0, follow=False)]

    assert [(event.kind, event.job_id) for event in events] == [
        (EventKind.ADDED, "order-17"),
        (EventKind.ADDED, own.id),
    ]
    assert [event.fields["payload"] for event in events] == [b"mine", b"own"]
    assert events[1].fields["key"] == "k"
