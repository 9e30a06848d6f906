"""Workers of an older version that reach the queue through a broker, over every wire."""

from __future__ import annotations

from typing import Any

import pytest

from casque import App, JobState, Queue
from casque.testing.hosting import leading
from casque.worker import Worker
from tests.integration.over_http.hosts import serving as over_http
from tests.support.over_grpc import serving as over_grpc


@pytest.mark.parametrize("wire", ["grpc", "http"])
async def test_what_an_older_remote_worker_does_not_understand_goes_back_and_harms_no_other_job(wire: str) -> None:
    serving: Any = over_grpc if wire == "grpc" else over_http
    async with leading(f"memory://remote-versions-{wire}") as host, serving(host) as server:
        app, sent = App(f"{wire}://127.0.0.1:{server.port}"), list[str]()

        @app.job()
        async def send(to: str) -> None:
            sent.append(to)

        async with Queue.open(app.url) as queue:
            await queue.enqueue_many([("send", b'{"to":"ann","cc":"bob"}'), ("send", b'{"to":"eve"}')])
            summary = await Worker(app, burst=True).run()
            [job] = await queue.jobs()

        assert (summary.done, summary.declined, sent) == (1, 1, ["eve"])
        assert (job.state, job.attempts, job.record.declined) == (JobState.DELAYED, 0, 1)
        assert "cc" in str(job.last_error)
