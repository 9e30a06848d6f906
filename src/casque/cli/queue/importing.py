"""`casque queue import`: take over the jobs of another queue's file."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import msgspec
import typer

from casque import checks
from casque.cli.command import command
from casque.cli.options import Json, parse_options
from casque.cli.output import answer, counted_steps, say
from casque.cli.target import QueueTarget, short_lived
from casque.client.config import QueueConfig
from casque.client.queue import DEFAULTS, Queue
from casque.compat.files import ForeignFile, ForeignJob, ForeignStatus, Kind, read_foreign
from casque.errors import InvalidInputError
from casque.storage.port import Stored
from casque.storage.url import is_address, open_store

if TYPE_CHECKING:
    from casque.client.staging import StagedJobs, StagedPart

STAGE_JOBS = 10_000
"""Jobs in one staged object: few objects, and a bar that moves."""


class Dead(StrEnum):
    """What becomes of jobs that the other queue has given up."""

    SKIP = "skip"
    RETRY = "retry"


class Imported(msgspec.Struct, frozen=True):
    """What the file had, and what became of it."""

    source: str
    kind: Kind
    dry_run: bool
    imported: int
    """Jobs that are in the queue now, or would be."""
    skipped: int
    """Jobs that the queue knew already; none in a dry run."""
    repeated: bool
    """Whether this file was imported before, so that nothing was added."""
    statuses: dict[str, int]
    """Jobs of the file by what they were doing."""
    entrypoints: dict[str, int]
    """Jobs to import by entrypoint."""


@command(
    "queue import",
    examples=[
        "casque queue import /var/lib/myapp/queue.json file:///var/lib/orders --dry-run",
        "casque queue import s3://my-bucket/queues/jobs.json s3://my-bucket/jobs -o region=eu-central-1",
        "casque queue import queue.json -q orders --from osqueue-go --entrypoint build",
    ],
    audited=True,
)
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The file, or its URL: s3://bucket/queue.json. It is never written.")
    ],
    target: QueueTarget,
    from_: Annotated[
        Kind | None, typer.Option("--from", help="Who wrote the file. Found out by its fields unless set.")
    ] = None,
    entrypoint: Annotated[
        str | None,
        typer.Option("--entrypoint", "-e", help="For jobs that have none in the file, instead of osqueue."),
    ] = None,
    dead: Annotated[
        Dead | None, typer.Option("--dead", help="Leave dead jobs out, or enqueue them again.", show_default=False)
    ] = None,
    skip_known: Annotated[
        bool, typer.Option("--skip-known", help="Leave out jobs whose ids the queue has, instead of refusing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check the file; write nothing.")] = False,
    source_option: Annotated[
        list[str] | None,
        typer.Option("--source-option", metavar="NAME=VALUE", help="Option for the file's store; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Take over the jobs of a queue of jqueue or osqueue, in Go or TypeScript, into a new or an existing queue.

    Stop the other queue's brokers and workers first. Jobs keep their ids, payloads, priorities and order; those that
    were running are enqueued too, because no worker finishes them any more. All jobs of the file are added in one
    commit, or none is: a job or a field that is not understood refuses the file, by name. The same file twice adds
    nothing the second time, also if its jobs are done by then.

    Exit code 0: imported, now or before. 1: the queue refuses. 2: it cannot be done: the file is not understood, the
    queue has one of its jobs, or it cannot be opened. Nothing was added then. 4: the outcome is unknown; run it again.
    """
    if entrypoint is not None:
        checks.entrypoint(entrypoint)
    place = None if dry_run else _place(target.resolve(), source)
    with counted_steps(wanted=not json) as step:
        body = asyncio.run(_read(source, parse_options(source_option)))
        try:
            file = read_foreign(body, from_, lambda done, total: step("reading", done, total))
        except InvalidInputError as error:
            raise InvalidInputError(f"{source}: {error}") from error
    if entrypoint is not None and file.kind is Kind.JQUEUE:
        raise InvalidInputError("--entrypoint is for jobs without one, and jqueue's have theirs: leave it out")
    jobs = [_with_entrypoint(job, entrypoint) for job in _to_import(file, dead, source)]
    found = Imported(
        source=source,
        kind=file.kind,
        dry_run=dry_run,
        imported=len(jobs),
        skipped=0,
        repeated=False,
        statuses=dict(Counter(str(job.status) for job in file.jobs)),
        entrypoints=dict(Counter(job.entrypoint for job in jobs)),
    )
    if place is not None and jobs:
        name = f"import {hashlib.sha256(body).hexdigest()}"
        found = _enqueue(target, place, _Rows(name, file, jobs), found, skip_known=skip_known, json=json)
    answer(found, lambda: _print(found), json=json)


def _place(place: QueueConfig, source: str) -> QueueConfig:
    """Where the jobs go.

    Raises:
        InvalidInputError: it is a broker, or the very place that they come from.
    """
    if is_address(place.url):
        raise InvalidInputError(
            "the jobs are put into the queue's bucket first: give its URL, not that of a broker. The broker may go on"
        )
    if _where(f"{place.url.rstrip('/')}/queue.json") == _where(source):
        raise InvalidInputError(
            f"{source} is what the queue at {place.url} would be written to. A file of jqueue's is opened as it is, "
            "without an import; for one of osqueue's give another URL"
        )
    return place


def _where(source: str) -> str:
    """The same text for the same file, however it is written."""
    if "://" in source and not source.startswith("file://"):
        return source.partition("?")[0]
    return str(_path(source).resolve())


def _path(source: str) -> Path:
    return Path(unquote(source.removeprefix("file://")) if source.startswith("file://") else source)


async def _read(source: str, options: dict[str, str]) -> bytes:
    """The bytes of a file or of an object.

    Raises:
        InvalidInputError: there is none.
    """
    if "://" not in source or source.startswith("file://"):
        if options:
            raise InvalidInputError("--source-option is for a bucket, and SOURCE is a file: leave it out")
        try:
            return await asyncio.to_thread(_path(source).read_bytes)
        except OSError as error:
            hint = f"; name the file in it, such as {source}/queue.json" if isinstance(error, IsADirectoryError) else ""
            raise InvalidInputError(f"{source}: {error.strerror}{hint}") from error
    above, _, name = source.rpartition("/")
    store = open_store(above, options=options)
    try:
        read = await store.get(unquote(name))
    finally:
        await store.close()
    if not isinstance(read, Stored):
        raise InvalidInputError(f"{source}: there is no such object. Name the file itself, not the prefix it is below")
    return read.body


def _to_import(file: ForeignFile, dead: Dead | None, source: str) -> list[ForeignJob]:
    given_up = file.with_status(ForeignStatus.DEAD)
    if given_up and dead is None:
        raise InvalidInputError(
            f"{source}: {len(given_up):,} of {len(file.jobs):,} jobs are dead, the first is {given_up[0].id!r}. "
            "--dead skip leaves them out, --dead retry enqueues them again"
        )
    left_out = {ForeignStatus.FINISHED} | ({ForeignStatus.DEAD} if dead is Dead.SKIP else set())
    return [job for job in file.jobs if job.status not in left_out]


def _with_entrypoint(job: ForeignJob, entrypoint: str | None) -> ForeignJob:
    if entrypoint is None or not job.unnamed:
        return job
    return msgspec.structs.replace(job, entrypoint=entrypoint)


class _Rows(msgspec.Struct, frozen=True):
    """The jobs of an admission."""

    name: str
    file: ForeignFile
    jobs: list[ForeignJob]

    def portions(self) -> Iterator[StagedJobs]:
        from casque.client.staging import StagedJobs

        for start in range(0, len(self.jobs), STAGE_JOBS):
            some = self.jobs[start : start + STAGE_JOBS]
            yield StagedJobs(
                ids=[job.id for job in some],
                entrypoints=[job.entrypoint for job in some],
                payloads=[job.payload for job in some],
                priorities=[job.priority for job in some],
                max_attempts=[job.max_attempts for job in some],
                headers=[self.file.headers_of(job) for job in some],
            )


def _enqueue(
    target: QueueTarget, place: QueueConfig, rows: _Rows, found: Imported, *, skip_known: bool, json: bool
) -> Imported:
    from casque.client.staging import Stager

    settings = DEFAULTS.with_changes(short_lived(place))

    async def work(queue: Queue[bytes]) -> Imported:
        parts: list[StagedPart] = []
        with (
            counted_steps(wanted=not json) as step,
            Stager(place.url, options=place.options or None, settings=settings, txn="import") as stager,
        ):
            done = 0
            for portion in rows.portions():
                step("writing", done, len(rows.jobs))
                parts += await asyncio.to_thread(stager.stage_all, portion)
                done += len(portion)
            step("adding", done, len(rows.jobs))
            admission = await queue.admit(rows.name, 1, parts, skip_known=skip_known)
        if admission.repeated:
            return msgspec.structs.replace(found, imported=0, repeated=True)
        return msgspec.structs.replace(found, imported=admission.jobs, skipped=admission.skipped)

    return target.run(work, creates=True)


def _print(found: Imported) -> None:
    total = sum(found.statuses.values())
    if found.repeated:
        say(f"{found.source} was imported before; nothing was added")
        return
    say(f"{found.imported:,} of {total:,} jobs {'to import' if found.dry_run else 'imported'}, written by {found.kind}")
    for name, number in sorted(found.entrypoints.items()):
        say(f"  {number:>9,}  {name}")
    if found.skipped:
        say(f"{found.skipped:,} jobs were in the queue already and left as they are")
    if running := found.statuses.get(ForeignStatus.RUNNING):
        say(f"{running:,} of them were running in the other queue: make sure that its workers are stopped")


ALIAS = msgspec.structs.replace(import_, path=("import",), hidden=True)
"""`casque import`, beside `casque convert`."""
