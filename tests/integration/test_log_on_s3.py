"""The feed, the past, conversion and verification on a real S3 server, where everything is a request."""

from __future__ import annotations

import pytest

from casque import Queue
from casque.clock import SystemClock, system_random
from casque.environment import Environment
from casque.journal.convert import Converter
from casque.journal.verify import Verifier
from casque.settings import QueueSettings
from casque.storage.url import open_store
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("s3")


async def test_a_log_on_s3_can_be_followed_looked_back_on_converted_and_verified(s3_server: Server) -> None:
    url, options = s3_server.fresh_url(), s3_server.options
    async with Queue.open(url, layout="log", options=options) as queue:
        for n in range(40):
            await queue.enqueue("send", b"%d" % n)
        [job] = await queue.dequeue("send")
        await job.ack()
    events = [e async for e in Queue.open(url, options=options).events(from_position=0, follow=False)]
    assert [event.kind.value for event in events] == ["added"] * 40 + ["claimed", "acked"]
    async with Queue.open(url, options=options, as_of=events[19].position) as queue:
        assert len(await queue.jobs()) == 20

    store = open_store(url, options=options)
    settings, clock, rng = QueueSettings(), SystemClock(), system_random()
    digests = set()
    for layout in ("document", "log"):
        converter = Converter(store, Environment(settings, clock, rng), say=lambda _: None)
        digests.add((await converter.convert(layout)).digest)
        verdict = await Verifier(store, Environment(settings, clock, rng)).verify()
        digests.add(verdict.digest)
        assert verdict.layout == layout
    await store.close()
    assert len(digests) == 1
    async with Queue.open(url, options=options) as queue:
        assert len(await queue.jobs()) == 39
