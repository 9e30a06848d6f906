"""Writers on the real S3 server behind a line that drops, throttles and delays: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Queue
from casque.clock import Random
from tests.acceptance.actors import Ledger, Log, act
from tests.support.proxy import Delay, Fault, Proxy
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("s3")

FAULTS = {
    Fault.DROP_BEFORE: 0.04,
    Fault.DROP_AFTER: 0.05,
    Fault.UNAVAILABLE: 0.02,
    Fault.TOO_MANY: 0.02,
    Fault.INTERNAL_ERROR: 0.02,
}
"""Together 15 % of all requests; every request is delayed by a random while besides."""


@pytest.mark.parametrize("layout", ["document", "log"])
@pytest.mark.parametrize("writers", [1, 3])
async def test_a_bad_line_loses_nothing_and_doubles_nothing(
    tmp_path: Path, s3_server: Server, writers: int, layout: str
) -> None:
    url = s3_server.fresh_url()
    async with Proxy(s3_server.endpoint, delay=Delay(2, sigma=0.8), seed=writers) as proxy:
        for fault, chance in FAULTS.items():
            proxy.inject(fault, chance=chance)
        options = s3_server.through(proxy.endpoint).options

        async def writer(number: int) -> None:
            async with Queue.open(
                url,
                layout=layout,
                options=options,
                stale_timeout=timedelta(minutes=5),
                storage_patience=timedelta(minutes=2),
            ) as queue:
                log = Log(tmp_path / f"w{number}.log")
                await asyncio.gather(
                    *(act(queue, log, f"w{number}.{n}", Random(f"{number}.{n}"), calls=100) for n in range(4))
                )

        await asyncio.gather(*(writer(number) for number in range(writers)))
        assert sum(proxy.faults.values()) > 10, "the line was better than it should have been"
        assert proxy.faults[Fault.DROP_AFTER] > 0
    ledger = Ledger.read(tmp_path)
    await ledger.hold_to_account(url, s3_server.options)
    assert not ledger.refused
    # Nobody died and nobody was refused, so what was tried is exactly what happened.
    assert ledger.tried["enqueue"] == ledger.told["enqueue"]
    assert ledger.tried["ack"] == ledger.told["ack"]
