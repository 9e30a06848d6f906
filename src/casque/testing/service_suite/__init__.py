"""What every way to reach a queue has to do, as tests that inherit: embedded, over gRPC, over HTTP.

    class TestOverMyWire(ServiceSuite):
        @pytest.fixture
        def reach(self):
            @asynccontextmanager
            async def reached(host):
                async with MyServer(host) as server, MyClient(server.address) as client:
                    yield client
            return reached

The suite opens a queue in this process and puts it behind a `Host`; `reach` is how a client gets to it, and may be used
for several clients of one host. Override `place` (a URL) to keep the queue somewhere else than in memory, or `host` to
bring a whole queue of your own. The tests are in one module for each topic; `ServiceSuite` has all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import pytest
import pytest_asyncio

from casque.clock import new_nonce, system_random
from casque.service import Host, QueueService
from casque.testing.hosting import leading
from casque.testing.service_suite.admit import AdmitTests
from casque.testing.service_suite.dequeue import DequeueTests
from casque.testing.service_suite.enqueue import EnqueueTests
from casque.testing.service_suite.gates import GateTests
from casque.testing.service_suite.history import HistoryTests
from casque.testing.service_suite.leases import LeaseTests
from casque.testing.service_suite.manage import ManageTests
from casque.testing.service_suite.request_ids import RequestIdTests
from casque.testing.service_suite.reschedule import RescheduleTests
from casque.testing.service_suite.schedules import ScheduleTests
from casque.testing.service_suite.settle import SettleTests
from casque.testing.service_suite.zones import ZoneTests

Reach: TypeAlias = Callable[[Host], AbstractAsyncContextManager[QueueService]]


class ServiceSuite(
    EnqueueTests,
    RequestIdTests,
    RescheduleTests,
    AdmitTests,
    DequeueTests,
    SettleTests,
    LeaseTests,
    ManageTests,
    ScheduleTests,
    HistoryTests,
    GateTests,
    ZoneTests,
):
    """Subclass it, say how a client reaches a host, and run pytest."""

    pytestmark = pytest.mark.asyncio

    # --- What a subclass provides ---

    @pytest.fixture
    def reach(self) -> Reach:
        """How a client gets to a host; as it is, by holding its service."""
        return _at_hand

    @pytest.fixture
    def place(self) -> str:
        """Where the queue is kept."""
        return f"memory://suite-{new_nonce(system_random())}"

    @pytest_asyncio.fixture
    async def host(self, place: str) -> AsyncIterator[Host]:
        async with leading(place) as host:
            yield host

    # --- What the tests use ---

    @pytest_asyncio.fixture
    async def service(self, host: Host, reach: Reach) -> AsyncIterator[QueueService]:
        async with reach(host) as service:
            yield service

    @pytest_asyncio.fixture
    async def other(self, host: Host, reach: Reach) -> AsyncIterator[QueueService]:
        """A second client of the same queue."""
        async with reach(host) as service:
            yield service


@asynccontextmanager
async def _at_hand(host: Host) -> AsyncIterator[QueueService]:
    yield host.service()
