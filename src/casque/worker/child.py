"""A child process that runs handlers, one job at a time.

It is started from scratch, not forked: a worker has threads, connections and an event loop, which do not survive a
fork. So it imports its handlers by name, from the same working directory. One socket carries frames: calls one way,
outcomes and log records the other. When the socket closes, the worker is dead, and the child exits.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import msgspec

from casque import checks
from casque.clock import SystemClock
from casque.errors import InvalidPayloadError, NotUnderstoodError
from casque.telemetry.tracing import going_on
from casque.types import Progress
from casque.worker.failures import described
from casque.worker.framing import frame, read_frame
from casque.worker.handlers import Cancel, Handler, JobContext, Snooze

PR_SET_PDEATHSIG = 1
REPORT_MS = 500
LEFT_OVER = 70
"""Exit code of a child whose worker died in the middle of a job."""


class Call(msgspec.Struct, array_like=True, tag="call"):
    """Run this job."""

    job_id: str
    entrypoint: str
    attempt: int
    token: int
    headers: dict[str, str]
    payload: bytes
    trace: dict[str, str] = {}
    """Trace headers: parent of the handler's spans."""


class Lost(msgspec.Struct, array_like=True, tag="lost"):
    """The worker no longer has the job with this token."""

    token: int


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """All handlers are loaded."""


class Broken(msgspec.Struct, array_like=True, tag="broken"):
    """The handlers could not be loaded."""

    error: str


class Logged(msgspec.Struct, array_like=True, tag="logged"):
    """A record of a job's logger: its attributes, pickled."""

    record: bytes


class Progressed(msgspec.Struct, array_like=True, tag="came"):
    """Progress of the running job."""

    progress: Progress


class Ended(msgspec.Struct, array_like=True, tag="ended"):
    """Outcome of a call: one of the first four fields, or none of them for a function that returned nothing."""

    result: bytes | None = None
    snooze: Snooze | None = None
    cancel: Cancel | None = None
    error: str | None = None
    final: bool = False
    """Whether a retry does not help."""
    declined: bool = False
    """Whether the payload was not understood, and the function not called."""
    resident: int = 0
    """Memory of this process, in bytes."""


class Task(msgspec.Struct):
    """Start-up data of a child, apart from the handlers."""

    preparation: dict[str, Any]
    """Import paths, and the main module if it contains handlers."""
    log_level: int
    parent: int


WorkerMessage: TypeAlias = Call | Lost
ChildMessage: TypeAlias = Ready | Broken | Logged | Progressed | Ended


class Child:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._handlers: dict[str, Handler] = {}
        self._now: JobContext | None = None
        self._reported_ms: int | None = None
        self._sending = threading.Lock()
        self._runner: asyncio.Runner | None = None

    def run(self) -> None:
        with self._line.makefile("rb") as heard:
            first, handlers = read_frame(heard), read_frame(heard)
            if first is None or handlers is None:
                return
            task: Task = pickle.loads(first)  # noqa: S301  it is our own parent
            _die_with(task.parent)
            _send_logs(self.send, task.log_level)
            try:
                self._handlers = _loaded(task, handlers)
            except BaseException as error:  # noqa: BLE001  an import may raise anything
                self.send(Broken(described(error, caller=__file__)))
                return
            threading.Thread(target=self._listen, args=(heard,), daemon=True).start()
            self.send(Ready())
            while (call := self._calls.get()) is not None:
                self.send(self._called(call))
            if self._runner is not None:
                self._runner.close()

    def send(self, message: ChildMessage) -> None:
        with self._sending:
            self._line.sendall(frame(_ENCODE(message)))

    def _listen(self, heard: Any) -> None:
        decode = msgspec.msgpack.Decoder(WorkerMessage).decode
        with suppress(OSError):
            while (body := read_frame(heard)) is not None:
                match decode(body):
                    case Call() as call:
                        self._calls.put(call)
                    case Lost(token=token):
                        if (context := self._now) is not None and context.token == token:
                            context.lease_lost.set()
        if self._now is not None:
            os._exit(LEFT_OVER)
        self._calls.put(None)

    def _called(self, call: Call) -> Ended:
        handler = self._handlers[call.entrypoint]
        context = JobContext(
            call.job_id,
            call.entrypoint,
            attempt=call.attempt,
            token=call.token,
            headers=call.headers,
            tell=self._report,
        )
        self._now, self._reported_ms = context, None
        try:
            with going_on(call.trace):
                returned = handler.call(call.payload, context)
                if handler.is_async:
                    returned = self._awaited(returned)
            ended = _ended(handler, returned)
        except BaseException as error:  # noqa: BLE001  it is the job's outcome, SystemExit as well
            final, declined = isinstance(error, InvalidPayloadError), isinstance(error, NotUnderstoodError)
            text = str(error) if final else described(error, caller=__file__)
            ended = Ended(error=text, final=final, declined=declined)
        finally:
            self._now = None
        ended.resident = resident_bytes()
        return ended

    def _report(self, progress: Progress) -> None:
        """Report progress every few seconds: the worker does not send it to the queue more often."""
        now_ms = _CLOCK.monotonic_ms()
        if self._reported_ms is None or now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            self.send(Progressed(progress))

    def _awaited(self, coroutine: Any) -> Any:
        """Runs all coroutines on one loop, so that connections which a module keeps open stay usable."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine, context=contextvars.copy_context())


def _ended(handler: Handler, returned: object) -> Ended:
    if isinstance(returned, Snooze):
        return Ended(snooze=returned)
    if isinstance(returned, Cancel):
        return Ended(cancel=returned)
    return Ended(result=checks.result(handler.encode_result(returned)))


def _loaded(task: Task, handlers: bytes) -> dict[str, Handler]:
    from multiprocessing import spawn

    spawn.prepare(task.preparation)
    loaded: dict[str, Handler] = pickle.loads(handlers)  # noqa: S301
    return loaded


def _die_with(parent: int) -> None:
    """Exit with the worker even if a handler holds the interpreter, so that no code here could notice its death."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(LEFT_OVER)


def _send_logs(send: Callable[[ChildMessage], None], level: int) -> None:
    """Send all records under `casque` to the worker, which logs them."""
    ours = logging.getLogger("casque")
    ours.handlers[:] = [_Sending(send)]
    ours.setLevel(level)
    ours.propagate = False


class _Sending(logging.Handler):
    def __init__(self, send: Callable[[ChildMessage], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        attributes = dict(record.__dict__)
        attributes["msg"] = self.format(record)  # with the traceback, which cannot be pickled
        attributes |= {"args": None, "exc_info": None, "exc_text": None, "stack_info": None}
        with suppress(OSError):
            self._send(Logged(pickle.dumps({name: _plain(value) for name, value in attributes.items()})))


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def resident_bytes() -> int:
    """Memory of this process now; its peak where the current value is not available."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def main() -> None:
    """Entry point. `processes` passes the number of the socket."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The child ends with its worker, not before. No SIG_IGN: programs that a handler starts would inherit it.
        signal.signal(number, lambda *_: None)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        Child(line).run()


_CLOCK = SystemClock()
_ENCODE = msgspec.msgpack.Encoder().encode
