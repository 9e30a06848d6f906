"""The processes of the demo: a broker and workers, each an ordinary command."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from casque.clock import Clock

APP = "casque.cli.demo.app:app"
CONCURRENCY = 6
LEASE_S = 2.0
"""The lease of workers and brokers: short, so that a dead one is soon noticed."""
START_S = 30.0
END_S = 8.0
LINES_KEPT = 20


class CrewError(Exception):
    """The demo cannot go on. For people only: programs do not run demos."""


class Member:
    """One process, and its last lines of output."""

    def __init__(self, title: str, process: asyncio.subprocess.Process) -> None:
        self.title = title
        self.process = process
        self.name = title
        """What the queue calls it."""
        self._output: deque[str] = deque(maxlen=LINES_KEPT)
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._reading = [
            asyncio.create_task(self._read(stream)) for stream in (process.stdout, process.stderr) if stream is not None
        ]

    @property
    def runs(self) -> bool:
        return self.process.returncode is None

    async def wait_for(self, parse: Callable[[str], Any]) -> Any:
        """The first result of `parse` that is not None, line by line.

        Raises:
            CrewError: it ended instead.
        """
        while (line := await self._lines.get()) is not None:
            if (found := parse(line)) is not None:
                return found
        raise CrewError(f"the {self.title} did not start: {' / '.join(self._output) or 'it said nothing'}")

    async def ended(self) -> int:
        code = await self.process.wait()
        await asyncio.gather(*self._reading, return_exceptions=True)
        return code

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").rstrip()
            self._output.append(text)
            if self._lines.qsize() < LINES_KEPT:  # once it has started, they are not read any more
                self._lines.put_nowait(text)
        self._lines.put_nowait(None)


class Crew:
    """All processes. `end` leaves none running, whatever happens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: list[Member] = []

    async def start_broker(self, url: str) -> tuple[Member, str]:
        """Start a broker, wait until it leads, and return its address too."""
        timing = ("--heartbeat", f"{LEASE_S / 4}", "--lease", f"{LEASE_S}", "--drain", f"{END_S}")
        listening = ("--listen", "127.0.0.1:0", "--no-http", "--log-format", "json")
        broker = await self._start("broker", "serve", url, *listening, *timing)
        addresses: list[str] = []

        def leads(line: str) -> str | None:
            fields = _json(line)
            addresses.extend([fields["advertise"]] if "advertise" in fields else [])
            return addresses[0] if fields.get("role") == "leader" and addresses else None

        return broker, await self._in_time(broker, leads)

    async def start_worker(self, number: int, address: str) -> Member:
        leases = ("--concurrency", str(CONCURRENCY), "--lease", str(LEASE_S), "--drain", str(END_S))
        worker = await self._start(f"worker {number}", "worker", APP, "--url", f"grpc://{address}", *leases)
        worker.name = await self._in_time(worker, _worker_name)
        return worker

    async def stop(self, *members: Member) -> None:
        """Terminate them, and kill those that do not end in time."""
        there = [member for member in members if member.runs]
        for member in there:
            member.process.terminate()
        patience = self._clock.call_later(END_S, lambda: _kill(there))
        try:
            await asyncio.gather(*(member.ended() for member in there))
        finally:
            patience.cancel()

    async def end(self) -> None:
        await self.stop(*self._members)

    async def _start(self, title: str, *arguments: str) -> Member:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "casque.cli.leash",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops them in order
        )
        member = Member(title, process)
        self._members.append(member)
        return member

    async def _in_time(self, member: Member, parse: Callable[[str], Any]) -> Any:
        try:
            async with asyncio.timeout(START_S):
                return await member.wait_for(parse)
        except TimeoutError:
            raise CrewError(f"the {member.title} did not start within {START_S:.0f} s") from None


def _kill(members: list[Member]) -> None:
    for member in members:
        if member.runs:
            member.process.kill()


def _worker_name(line: str) -> str | None:
    name, works, _ = line.partition(" works on ")
    return name if works else None


def _json(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
