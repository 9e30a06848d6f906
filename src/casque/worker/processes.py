"""Child processes for handlers: they use another core, may crash, and can be killed.

Each runs one job at a time, so a crash takes no other job with it. They are started on demand, up to the largest number
of jobs at once, and replaced after a number of jobs, when they hold too much memory, or when they died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from casque.clock import Clock
from casque.errors import InvalidInputError
from casque.telemetry import logger
from casque.types import Progress
from casque.worker.child import Broken, Call, ChildMessage, Ended, Logged, Lost, Progressed, Ready, Task, WorkerMessage
from casque.worker.claims import Claim
from casque.worker.framing import frame
from casque.worker.handlers import Handler

log = logger("worker")

GRACE_S = 5.0
"""How long a handler whose lease is lost may take to notice it; then its process is killed."""
END_S = 2.0
"""How long an idle process may take to end."""
_PREPARED = ("sys_path", "sys_argv", "orig_dir", "dir")
_MAIN = ("init_main_from_name", "init_main_from_path")


class NoProcessError(Exception):
    """No process could be started; the job is not to blame."""


class ProcessDiedError(Exception):
    """The process died while it ran the job."""


class ChildProcess:
    """One child process and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: Any) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._decode: Callable[[bytes], ChildMessage] = msgspec.msgpack.Decoder(ChildMessage).decode
        self.on_progress: Callable[[Progress], None] = lambda _progress: None
        """Called with the progress of its job."""
        self.calls = 0
        self.token: int | None = None
        """Token of its job."""

    def send(self, message: WorkerMessage) -> None:
        self._writer.write(frame(_ENCODE(message)))

    async def receive(self) -> Ready | Broken | Ended:
        """
        Raises:
            ProcessDiedError: the connection is closed.
        """
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                match self._decode(await self._reader.readexactly(size)):
                    case Logged(record=record):
                        _log_again(record)
                    case Progressed(progress=progress):
                        self.on_progress(progress)
                    case answer:
                        return answer
        except (asyncio.IncompleteReadError, OSError):
            raise ProcessDiedError from None

    @property
    def code(self) -> int | None:
        """Exit code; below zero for a signal. None while it runs."""
        return self._process.poll()

    def let_go(self) -> None:
        """Close the connection; an idle process then ends by itself."""
        self._writer.close()

    def kill(self) -> None:
        self._writer.close()
        self._process.kill()
        self._process.wait()


class Processes:
    def __init__(
        self, handlers: Mapping[str, Handler], *, recycle_after: int | None, recycle_bytes: int | None, clock: Clock
    ) -> None:
        """
        Raises:
            InvalidInputError: a handler cannot be found by its name.
        """
        self._handlers = pickled(handlers)
        self._recycle_after = recycle_after
        self._recycle_bytes = recycle_bytes
        self._clock = clock
        self._idle: list[ChildProcess] = []
        self._busy: dict[Claim, ChildProcess] = {}
        self._ending: list[ChildProcess] = []

    async def start(self) -> None:
        """Start one process, to see that it works.

        Raises:
            InvalidInputError: handlers cannot be loaded in a child process.
        """
        try:
            self._idle.append(await self._made())
        except NoProcessError as error:
            raise InvalidInputError(str(error)) from error

    async def call(self, claim: Claim) -> Ended:
        """
        Raises:
            NoProcessError: the call was not made.
            ProcessDiedError: the process died; the message says why.
            TimeoutError: the call took too long, and its process was killed.
        """
        child = self._idle.pop() if self._idle else await self._made()
        if claim.left or claim.stopping:  # meanwhile
            self._idle.append(child)
            raise NoProcessError("it was lost before it began")
        self._busy[claim] = child
        job = claim.job
        child.token = job.token
        child.on_progress = claim.record_progress
        child.calls += 1
        try:
            headers = dict(job.record.spec.headers or {})
            trace = {} if claim.trace is None else claim.trace.carried()
            child.send(Call(job.id, job.entrypoint, job.attempts, job.token, headers, job.raw_payload, trace))
            async with asyncio.timeout(claim.handler.timeout_s):
                ended = await child.receive()
            assert isinstance(ended, Ended)
        except ProcessDiedError:
            raise ProcessDiedError(f"the process that ran it {await self._why(child)}") from None
        except BaseException:
            child.kill()
            raise
        else:
            child.token = None
            self._put_back(child, ended.resident)
            return ended
        finally:
            del self._busy[claim]

    def ask_to_end(self, claim: Claim) -> None:
        """Set the `lease_lost` flag of its handler."""
        if (child := self._busy.get(claim)) is not None:
            child.send(Lost(claim.job.token))

    def kill(self, claim: Claim) -> None:
        """Kill its process, if it still has one."""
        if (child := self._busy.get(claim)) is not None and child.token == claim.job.token:
            child.kill()

    def lose(self, claim: Claim) -> None:
        """Ask its handler to stop, and kill it if it does not."""
        if (child := self._busy.get(claim)) is None:
            return
        child.send(Lost(claim.job.token))

        def end() -> None:
            if child.token == claim.job.token and child.code is None:
                log.warning("job %s is lost and does not stop; killing its process", claim.job.id)
                child.kill()

        self._clock.call_later(GRACE_S, end)

    async def close(self) -> None:
        """Kill busy processes; idle ones end by themselves, or are killed after a while."""
        for child in self._busy.values():
            child.kill()
        self._ending += self._idle
        for child in self._idle:
            child.let_go()
        self._idle = []
        try:
            until_ms = self._clock.monotonic_ms() + END_S * 1000
            while self._clock.monotonic_ms() < until_ms and (
                self._busy or any(child.code is None for child in self._ending)
            ):
                await self._clock.sleep(0.01)
        finally:
            for child in self._ending:
                child.kill()

    # --- Inside ---

    async def _made(self) -> ChildProcess:
        """
        Raises:
            NoProcessError: none could be started.
        """
        child = await _started(self._handlers)
        try:
            answer = await child.receive()
        except ProcessDiedError:
            why = f"a process for handlers {await self._why(child)} while it started"
            raise NoProcessError(why) from None
        except BaseException:
            child.kill()
            raise
        if isinstance(answer, Broken):
            child.kill()
            raise NoProcessError(f"a process for handlers could not load them: {answer.error}")
        return child

    def _put_back(self, child: ChildProcess, resident: int) -> None:
        if self._recycle_after is not None and child.calls >= self._recycle_after:
            self._retire(child, f"after {child.calls} jobs")
        elif self._recycle_bytes is not None and resident > self._recycle_bytes:
            self._retire(child, f"with {resident // 2**20} MiB of memory")
        else:
            self._idle.append(child)

    def _retire(self, child: ChildProcess, why: str) -> None:
        log.info("replacing a process for handlers %s", why)
        child.let_go()
        self._ending = [one for one in self._ending if one.code is None] + [child]

    async def _why(self, child: ChildProcess) -> str:
        """How it ended. It may have closed its socket a moment before, or have lost it in some other way."""
        until_ms = self._clock.monotonic_ms() + END_S * 1000
        while child.code is None and self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep(0.005)
        code = child.code
        child.kill()
        if code is None:
            return "fell silent and was killed"
        return f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def pickled(handlers: Mapping[str, Handler]) -> bytes:
    """Usually the names of functions: the child imports them itself.

    Raises:
        InvalidInputError: a handler has no name by which it could be imported.
    """
    for name, handler in handlers.items():
        try:
            pickle.dumps(handler)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"the handler of {name!r} has executor='process', and a process cannot find it by its name: {error}. "
                "Define it at the top level of a module"
            ) from error
    return pickle.dumps(dict(handlers))


async def _started(handlers: bytes) -> ChildProcess:
    ours, process = _spawned()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    level = logging.getLogger("casque.job").getEffectiveLevel()
    task = Task(_preparation(with_main=b"__main__" in handlers), level, os.getpid())
    writer.write(frame(pickle.dumps(task)) + frame(handlers))
    return ChildProcess(process, reader, writer)


def _spawned() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "from casque.worker.child import main; main()", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the worker, which lets jobs finish
        )
    return ours, process


def _preparation(*, with_main: bool) -> dict[str, Any]:
    """The data that `multiprocessing` passes to a new process, so that it imports modules as this one does."""
    from multiprocessing import spawn

    known = spawn.get_preparation_data("casque")
    wanted = (*_PREPARED, *_MAIN) if with_main else _PREPARED
    return {name: known[name] for name in wanted if name in known}


def _log_again(record: bytes) -> None:
    attributes: dict[str, Any] = pickle.loads(record)  # noqa: S301  it is our own child
    made = logging.makeLogRecord(attributes)
    target = logging.getLogger(made.name)
    if target.isEnabledFor(made.levelno):
        target.handle(made)


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


_ENCODE = msgspec.msgpack.Encoder().encode
