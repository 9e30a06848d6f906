"""A small process beside the worker that renews its leases while the worker cannot.

Heartbeats run on the worker's own loop. A coroutine that computes for a minute stops it, and native code that does not
release the interpreter stops every thread of the process, so a thread could not help. The guard hears from the worker
every second or so; when it hears nothing for a quarter of a lease while the worker still lives, it opens the queue
itself and renews the leases that the worker reported, until it hears from the worker again. When the worker dies, its
end of the pipe closes and the guard exits at once: a dead worker keeps no lease.

A guard costs no writer of its own: it opens the queue only while the worker is silent.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from casque.client.queue import Queue
from casque.clock import SystemClock
from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.service import Lease
from casque.telemetry import logger
from casque.worker.claims import Claim
from casque.worker.framing import frame, read_frame

log = logger("worker")

UNSENT_MAX = 16 * 1024 * 1024
"""Bytes that may wait for a guard that does not read; beyond that the worker gives it up."""
SILENCE_MAX_S = 3600.0
"""A worker that is silent for longer is not computing but stuck: its jobs go to others."""


class LeaseReport(msgspec.Struct, array_like=True):
    """A report of the worker: it lives, holds these jobs (id, token, time limit), and has given up those."""

    held: list[tuple[str, int, float | None]] = []
    gone: list[tuple[str, int]] = []


class Guard:
    """The worker's end. Never waits: a guard that does not read must not stop the worker."""

    def __init__(self, url: str, opening: Mapping[str, Any], *, worker: str, lease_s: float) -> None:
        first = pickle.dumps((url, dict(opening), worker, lease_s))
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-c", "from casque.worker.guard import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the worker, which may need its guard until it has drained
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        flags = fcntl.fcntl(self._pipe, fcntl.F_GETFL)
        fcntl.fcntl(self._pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        if sys.platform == "linux":
            with suppress(OSError):  # room for some twenty thousand jobs, while the guard is still starting
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 1024 * 1024)
        self._unsent = bytearray()
        self._gone: list[tuple[str, int]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._send(first)

    def held(self, claims: Iterable[Claim]) -> None:
        """Report claims before the first of them is started: its handler may block the loop."""
        self._send(
            self._encode(
                LeaseReport([(claim.job.id, claim.job.token, claim.handler.timeout_s) for claim in claims], [])
            )
        )

    def gone(self, job_id: str, token: int) -> None:
        self._gone.append((job_id, token))  # not urgent: a finished job cannot be renewed

    def alive(self) -> None:
        gone, self._gone = self._gone, []
        self._send(self._encode(LeaseReport([], gone)))

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            try:
                process.stdin.close()
            except OSError:
                pass
            process.kill()  # it may not have come to reading the end of the pipe
            process.wait()

    def _send(self, body: bytes) -> None:
        if self._process is None:
            return
        self._unsent += frame(body)
        try:
            while self._unsent:
                del self._unsent[: os.write(self._pipe, self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > UNSENT_MAX:
                self._give_up("does not listen")
        except OSError:
            self._give_up("has died")

    def _give_up(self, why: str) -> None:
        log.warning("the process that renews leases while this one is busy %s; continuing without it", why)
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


class _Keeping:
    """The guard's end: the reported leases, and the queue while it is needed."""

    def __init__(self, url: str, opening: dict[str, Any], worker: str, lease_s: float) -> None:
        self._url = url
        self._opening = opening
        self._worker = worker
        self._lease_s = lease_s
        self._clock = SystemClock()
        self._held: dict[tuple[str, int], float | None] = {}
        self._heard_ms = self._clock.monotonic_ms()
        self._parent = os.getppid()

    def receive(self, report: LeaseReport) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        for job_id, token, limit_s in report.held:
            self._held[job_id, token] = limit_s
        for job_id, token in report.gone:
            self._held.pop((job_id, token), None)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / 16)
            if self._is_needed():
                try:
                    await self._step_in()
                except CasqueError as error:
                    log.warning("could not renew leases while the worker is busy, trying again: %s", error)

    def _silent_s(self) -> float:
        return (self._clock.monotonic_ms() - self._heard_ms) / 1000

    def _is_needed(self) -> bool:
        return bool(self._held) and self._lease_s / 4 < self._silent_s() < SILENCE_MAX_S

    async def _step_in(self) -> None:
        async with Queue.open(self._url, worker=self._worker, **self._opening) as queue:
            while self._is_needed():
                await self._beat(queue)
                await self._clock.sleep(self._lease_s / 4)

    async def _beat(self, queue: Queue[bytes]) -> None:
        if os.getppid() != self._parent:
            os._exit(0)  # the worker is dead even if one of its children holds the pipe open
        silent_s = self._silent_s()
        for lease, limit_s in list(self._held.items()):
            if limit_s is not None and silent_s > limit_s + self._lease_s:
                del self._held[lease]  # its handler has exceeded its time limit
        leases = list(self._held)
        answers = await queue.heartbeats([Lease(job_id, token) for job_id, token in leases])
        for lease, refused in zip(leases, answers, strict=True):
            if isinstance(refused, (LeaseLostError, JobNotFoundError)):
                self._held.pop(lease, None)


def main() -> None:
    """Entry point of a guard. Reads its start-up data first, then reports until the worker ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the guard ends with its worker, not before
    pipe = sys.stdin.buffer
    if (first := read_frame(pipe)) is None:
        return
    keeping = _Keeping(*pickle.loads(first))  # noqa: S301  it is our own parent

    async def run() -> None:
        loop = asyncio.get_running_loop()
        decode = msgspec.msgpack.Decoder(LeaseReport).decode

        def listen() -> None:
            while (heard := read_frame(pipe)) is not None:
                loop.call_soon_threadsafe(keeping.receive, decode(heard))
            os._exit(0)  # the worker has ended

        threading.Thread(target=listen, daemon=True).start()
        await keeping.run()

    asyncio.run(run())
