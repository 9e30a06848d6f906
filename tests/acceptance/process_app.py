"""The app of the tests of processes. Functions say in files of a directory what they do, and wait for others."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

from opentelemetry import trace

import casque
from casque import Cancel, JobContext, Snooze

PLACE = Path(os.environ.get("PROCESS_APP_PLACE", "."))
app = casque.App(f"file://{PLACE}/queue")


def say(word: str) -> None:
    """With the process that says it: made elsewhere and moved, so that nobody reads half of it."""
    (PLACE / f"{word}.tmp").write_text(str(os.getpid()))
    (PLACE / f"{word}.tmp").rename(PLACE / word)


@app.job(executor="process")
def square(context: JobContext, number: int) -> int:
    context.logger.warning("squaring %d", number)
    return number * number


@app.job(executor="process")
async def where(text: str) -> str:
    return f"{text} {os.getpid()}"


@app.job(executor="process")
async def trace_id() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@app.job(executor="process")
def put_off() -> Snooze:
    return Snooze(3600)


@app.job(executor="process")
def withdraw() -> Cancel:
    return Cancel("nobody wants it")


@app.job(executor="process", backoff=3600)
def fail() -> None:
    raise ValueError("no such user")


@app.job(executor="process", backoff=3600)
def leave() -> None:
    raise SystemExit(3)


@app.job(executor="process", backoff=3600, timeout=1)
def hold_for_ever(name: str) -> None:
    """Native code that does not let go of the interpreter."""
    say(name)
    ctypes.PyDLL(None).pause()


@app.job(executor="process", backoff=3600)
def hold(name: str) -> None:
    """The same without a limit; the pipe breaks when the process is gone."""
    os.open(PLACE / f"{name}.pipe", os.O_WRONLY)
    say(name)
    ctypes.PyDLL(None).pause()


@app.job(executor="process", backoff=3600)
def wait(context: JobContext, name: str) -> str:
    context.progress(1, total=3, note=name)
    say(f"{name}.started")
    while not (PLACE / f"{name}.go").exists():
        if context.lease_lost.is_set():
            say(f"{name}.lost")
            return "lost"
        threading.Event().wait(0.01)
    return f"{name} {context.job_id} {context.attempt}"


@app.job(executor="process", backoff=0, max_crashes=2)
def die_apart() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(backoff=0, max_crashes=2)
async def die_here() -> None:
    os._exit(3)


@app.job(backoff=0, max_crashes=2)
def die_in_a_thread() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
