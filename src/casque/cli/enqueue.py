"""`casque enqueue`: add jobs from a shell."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from casque import times
from casque.cli.apps import load_app
from casque.cli.command import command
from casque.cli.job_view import view_job
from casque.cli.new_job import NewJobOptions
from casque.cli.options import Json, parse_span, read_payload
from casque.cli.output import print_json, progress, say
from casque.cli.target import QueueTarget
from casque.client.job import Job
from casque.client.new_jobs import NewJob
from casque.client.queue import Queue
from casque.errors import CasqueError, InvalidInputError, UnknownOutcomeError

COMMIT_JOBS = 2_000
"""Jobs in one commit: the commit is short, and its cost is spread over many."""
COMMIT_BYTES = 1 << 20
MakeJob = Callable[[bytes], NewJob[bytes]]
"""Makes the job for a payload."""


@command(
    "enqueue",
    examples=[
        """casque enqueue file:///var/lib/orders send '{"to": "ann"}'""",
        "casque enqueue send @letter.json --delay 10m --key letter-7",
        'casque enqueue --app shop.jobs:app send \'{"to": "ann"}\'',
        "cat ids.txt | casque enqueue grpc://broker:7700 resize --lines",
    ],
)
def enqueue(
    target: QueueTarget,
    entrypoint: Annotated[
        str | None, typer.Argument(metavar="ENTRYPOINT", help="Which handler the job is for.", show_default=False)
    ] = None,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="Text, - for standard input, or @FILE. Empty if left out.", show_default=False
        ),
    ] = None,
    *,
    options: NewJobOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of identical jobs.")] = 1,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="SPAN", help="Wait this long before the job is due: 30s, 10m, 2h, 1d."),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Time at which the job is due: 2026-02-15T10:00, in UTC.")
    ] = None,
    fifo: Annotated[
        bool,
        typer.Option("--fifo", help="Run the jobs of the zone strictly in order, one at a time."),
    ] = False,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Add one job per line of standard input, or of @FILE; empty lines are skipped."),
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the job, instead of a random one; refused while a job in the queue has it."),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="Id of this request: repeated with the same id, it acts once.")
    ] = None,
    json: Json = False,
) -> None:
    """Add a job, or many; they are durable when this ends. Prints the id of a job, or how many there are.

    With --app, the payload is checked against the app's function, whose options apply: its attempts, crashes, key, zone
    and priority. Without it, any payload is accepted.

    A queue that is not there yet is made. With --key, the id may be that of the job that holds the key. With --lines,
    jobs are added while lines come in, each portion in one commit; if that fails, it says which line is the first
    that was not added.

    Exit code 0: enqueued. 1: the queue refuses or is damaged. 2: it cannot be done. 4: the outcome is
    unknown; with the same --request-id it can be repeated.
    """
    target, arguments = target.separate(entrypoint, payload)
    handler, source = _entrypoint_and_payload(arguments)
    job = options.job(
        handler,
        b"",
        delay=None if delay is None else parse_span("--delay", delay),
        run_at=None if at is None else times.moment("--at", at),
        fifo=fifo,
        id=job_id,
    )
    make = partial(_with, job) if target.app is None else _checked_by(target.app, job)
    _check(job, count=count, lines=lines, request_id=request_id)
    target.resolve()  # complain about the queue before anything is read from standard input
    content = b"" if lines else read_payload(source)
    copied = job if lines else make(content)  # a payload that does not fit is refused before the queue is opened
    added = _Added(json)

    async def work(q: Queue[bytes]) -> None:
        if lines:
            await _enqueue_lines(q, make, source, added)
        else:
            await _enqueue_copies(q, copied, count, request_id, added)

    target.run(work, creates=True)
    added.report()


def _check(job: NewJob[bytes], *, count: int, lines: bool, request_id: str | None) -> None:
    if job.delay is not None and job.run_at is not None:
        raise InvalidInputError("give either --delay or --at, not both")
    if job.fifo and job.zone is None:
        raise InvalidInputError("--fifo is about the order within a zone: say which one with --zone")
    if job.fifo and (job.delay is not None or job.run_at is not None):
        raise InvalidInputError("--fifo does not go together with --delay or --at: jobs come one after the other")
    if job.key is not None and (lines or count > 1):
        raise InvalidInputError("--key is for one job: of many that have the same key, only the first is added")
    if job.id is not None and (lines or count > 1):
        raise InvalidInputError("--id is for one job: many need an id each, which casque makes")
    if lines and (request_id is not None or count > 1):
        raise InvalidInputError("--request-id and --count do not go together with --lines")
    if count > COMMIT_JOBS and request_id is not None:
        raise InvalidInputError(f"--request-id is for one commit: at most {COMMIT_JOBS:,} jobs")


class _Added:
    """Counts what was enqueued so far."""

    def __init__(self, json: bool) -> None:
        self.jobs = 0
        self.lines = 0
        """Lines of the input that are done."""
        self._json = json
        self._id = ""

    def take(self, jobs: list[Job[bytes]]) -> None:
        self.jobs += len(jobs)
        self._id = jobs[-1].id
        if self._json:
            for job in jobs:
                print_json(view_job(job))

    def report(self) -> None:
        if self._json:
            return
        say(self._id if self.jobs == 1 else f"{self.jobs:,} jobs enqueued")


def _entrypoint_and_payload(arguments: list[str]) -> tuple[str, str | None]:
    match arguments:
        case [entrypoint]:
            return entrypoint, None
        case [entrypoint, payload]:
            return entrypoint, payload
        case []:
            raise InvalidInputError("no entrypoint: write casque enqueue [URL] ENTRYPOINT [PAYLOAD]")
        case _:
            raise InvalidInputError(
                f"too many arguments: {arguments[0]!r} is not a URL, so {arguments[2]!r} has no meaning. Put quotes "
                "around a payload with spaces"
            )


def _checked_by(name: str, job: NewJob[bytes]) -> MakeJob:
    """Jobs as the function of an app would enqueue them: with its checks, and with its options where the command line
    sets none.

    Raises:
        InvalidInputError: the app has no such function.
    """
    functions: Mapping[str, Any] = getattr(load_app(name), "functions", {})
    if (function := functions.get(job.entrypoint)) is None:
        there = ", ".join(functions) or "no functions"
        raise InvalidInputError(f"{name} has no function {job.entrypoint!r}: it has {there}")
    plain: NewJob[bytes] = NewJob(job.entrypoint, b"")
    given = {
        field: value
        for field in NewJob.__struct_fields__
        if field != "payload" and (value := getattr(job, field)) != getattr(plain, field)
    }

    def make(payload: bytes) -> NewJob[bytes]:
        arguments = function.definition.arguments.decode(payload or b"{}")
        made: NewJob[bytes] = function.bind(**arguments).new
        return msgspec.structs.replace(made, **given)

    return make


def _with(job: NewJob[bytes], payload: bytes) -> NewJob[bytes]:
    return msgspec.structs.replace(job, payload=payload)


async def _enqueue_copies(
    q: Queue[bytes], job: NewJob[bytes], count: int, request_id: str | None, added: _Added
) -> None:
    # One request is one commit, however large.
    at_once = (
        COMMIT_JOBS if request_id is not None else max(1, min(COMMIT_JOBS, COMMIT_BYTES // (len(job.payload) or 1)))
    )
    with progress(count, "0 jobs", wanted=count > at_once) as (bar, task):
        while added.jobs < count:
            added.take(await q.enqueue_many([job] * min(at_once, count - added.jobs), request_id=request_id))
            bar.update(task, completed=added.jobs, description=f"{added.jobs:,} jobs")


async def _enqueue_lines(q: Queue[bytes], make: MakeJob, source: str | None, added: _Added) -> None:
    """Enqueue lines as they arrive, so that a slow producer's jobs do not wait for its last one."""
    opened = _open_lines(source)
    try:
        size = os.fstat(opened).st_size if stat.S_ISREG(os.fstat(opened).st_mode) else None
        with progress(size, "0 jobs", wanted=True) as (bar, task):
            read = 0
            async for portion in _portions(opened):
                jobs = [make(line) for line in portion if line]
                try:
                    if jobs:
                        added.take(await q.enqueue_many(jobs))
                except CasqueError as error:
                    _report_failure(added, portion, error)
                    raise
                added.lines += len(portion)
                read += sum(map(len, portion)) + len(portion)
                bar.update(task, completed=read, description=f"{added.jobs:,} jobs")
    finally:
        if source not in (None, "-"):
            os.close(opened)


def _open_lines(source: str | None) -> int:
    if source in (None, "-"):
        return sys.stdin.fileno()
    assert source is not None
    if not source.startswith("@"):
        raise InvalidInputError("--lines reads standard input, or @FILE: leave the payload out")
    try:
        return os.open(source[1:], os.O_RDONLY)
    except OSError as error:
        raise InvalidInputError(f"{source}: {error.strerror}") from error


def _report_failure(added: _Added, portion: list[bytes], error: CasqueError) -> None:
    first, last = added.lines + 1, added.lines + len(portion)
    resume = f"the first line that was not enqueued is {first:,}"
    if isinstance(error, UnknownOutcomeError):
        resume = f"lines {first:,} to {last:,} may have been enqueued, all or none; no later one was"
    say(f"{added.jobs:,} jobs were enqueued before this failed; {resume}", err=True)


async def _portions(source: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends: as many as have arrived, at most one commit's worth."""
    rest = b""
    async for chunk in _chunks(source):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), COMMIT_JOBS):
            yield [line.removesuffix(b"\r") for line in lines[start : start + COMMIT_JOBS]]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _chunks(source: int) -> AsyncIterator[bytes]:
    """Read in a daemon thread: a read may block for ever, and Ctrl-C must still end the command."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=2)

    def reading() -> None:
        chunk: bytes | OSError = b"?"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(source, COMMIT_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(read.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # the command has ended meanwhile

    threading.Thread(target=reading, name="casque lines", daemon=True).start()
    while chunk := await read.get():
        if isinstance(chunk, OSError):
            raise InvalidInputError(f"the lines cannot be read: {chunk.strerror}") from chunk
        yield chunk
