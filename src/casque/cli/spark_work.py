"""`casque spark work URL --handler module:function`, or `--app module:app`: Spark's executors work off a queue."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from casque.cli.place import find_place
from casque.cli.running import EXIT_CANNOT_TELL, EXIT_FAILED, Json, OptionalUrl, StoreOptions
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, print_json
from casque.client.changes import changes_from
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, WorkFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from casque.spark.work import Summary

EXAMPLES = """
[bold]Examples[/]

  casque spark work s3://bucket/orders --handler mail.jobs:send --entrypoint send

  casque spark work s3://bucket/orders --handler mail.jobs:send --follow --remote sc://spark.example

  casque spark work --app shop.jobs:app --until empty

  spark-submit --master k8s://... $(which casque) spark work s3://bucket/orders --handler mail.jobs:send
"""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit runs this program: the session is made of what was said there."""


class Takes(StrEnum):
    """What a handler takes."""

    JOB = "job"
    ARROW = "arrow"
    PANDAS = "pandas"


class Ends(StrEnum):
    """When a run is over."""

    DUE = "due"
    EMPTY = "empty"


class Way(StrEnum):
    AUTO = "auto"
    EMBEDDED = "embedded"
    BROKER = "broker"


Master = Annotated[
    str, typer.Option("--master", metavar="MASTER", help="Where Spark runs, unless spark-submit has said it.")
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", metavar="sc://HOST", help="A Spark Connect server, instead of a local session."),
]


def work(
    url: OptionalUrl = None,
    handler: Annotated[
        str | None,
        typer.Option("--handler", metavar="MODULE:FUNCTION", help="What to call; executors must have the module."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="An app: its functions are called, instead of a --handler.",
        ),
    ] = None,
    kind: Annotated[
        Takes, typer.Option("--kind", help="What it takes: one job, or an Arrow table or a pandas frame of many.")
    ] = Takes.JOB,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="Jobs claimed at a time; by default as many as take a few seconds.")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", metavar="SECONDS", help="How soon jobs come back if this driver dies.")
    ] = 60,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="How long batches may run on when it is to stop.")
    ] = 30,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long a batch may run; then its leases run out.")
    ] = 3600,
    until: Annotated[
        Ends,
        typer.Option("--until", help="End when nothing is due, or when nothing is left: not even delayed or claimed."),
    ] = Ends.DUE,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more jobs, until SIGTERM or Ctrl-C.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="At most so many jobs.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", help="Into how many parts a batch is cut at the most.")
    ] = None,
    per_call: Annotated[
        int | None, typer.Option("--per-call", help="Jobs in one call of a handler of many; by default all of a part.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Jobs at once in one task, in threads or as coroutines.")
    ] = 1,
    results: Annotated[
        str | None,
        typer.Option("--results", metavar="URL", help="A warehouse for what handlers return, instead of the archive."),
    ] = None,
    result_schema: Annotated[
        str | None, typer.Option("--result-schema", metavar="DDL", help="The columns of it: 'pages int, title string'.")
    ] = None,
    results_option: Annotated[
        list[str] | None,
        typer.Option("--results-option", help="NAME=VALUE for the warehouse's store; may be repeated."),
    ] = None,
    via: Annotated[
        Way, typer.Option("--via", help="Reach the queue itself, or through the broker that leads it.")
    ] = Way.AUTO,
    setting: Annotated[
        list[str] | None,
        typer.Option("--setting", "-s", metavar="NAME=VALUE", help="A setting of the queue; may be repeated."),
    ] = None,
    option: StoreOptions = None,
    master: Master = "local[*]",
    remote: Remote = None,
    json: Json = False,
) -> None:
    """Have Spark's executors work off a queue.

    The driver claims jobs, keeps their leases alive and settles what comes back; executors only call the handler. What
    it returns (bytes) goes to the archive, what it raises makes the attempt a failed one. Modules in the directory that
    this is started from are found too, if the session is local.

    With --app the functions of an app are called, each for its own jobs, with its own time limit, attempts and
    back-off; jobs of others are never claimed. Its own queue is worked off, unless another one is named.

    Ends when nothing is due. SIGTERM and Ctrl-C end it cleanly: what was only claimed goes back, what runs has the time
    of --drain, and then it is interrupted and goes back too, which is no attempt. A second one ends it on the spot, and
    jobs come back by their leases.

    Exit code 0: ended, though jobs may have failed. 1: the handler or Spark could not be used, or the queue is damaged.
    2: it could not start.
    """
    console = Terminal(stderr=True)
    stop = threading.Event()
    try:
        if (handler is None) == (app is None):
            raise InvalidInputError("give --handler module:function or --app module:app: what is to be called?")
        settings = changes_from(setting or [])
        options = parse_options(option or [])
        tls = None
        if url is None and app is None:
            place = find_place(None, None, option)
            url, options, tls, settings = place.url, place.options, place.tls, {**place.changes(), **settings}
        _find_modules_here()
        from casque.spark.work import process
        from casque.spark.work.calling import by_name
        from casque.worker.named import app_named

        _ = by_name(handler) if handler else app_named(str(app))  # before a session is made, which takes a while

        with (
            session("casque spark work", master, remote) as spark,
            _signals(stop, console),
            _shown(console, json) as tell,
        ):
            summary = process(
                spark,
                url,
                handler,
                app=app,
                kind=kind.value,
                entrypoints=entrypoint,
                batch=batch,
                lease=lease,
                timeout=timeout,
                drain=drain,
                until=until.value,
                follow=follow,
                limit=limit,
                tasks=tasks,
                per_call=per_call,
                concurrency=concurrency,
                results=results,
                result_schema=result_schema,
                results_options=parse_options(results_option) if results_option else None,
                via=via.value,
                options=options or None,
                tls=tls,
                stop=stop,
                on_progress=tell,
                **settings,
            )
    except (WorkFailedError, CorruptQueueError) as error:
        raise _ended(console, error, EXIT_FAILED) from None
    except CasqueError as error:
        raise _ended(console, error, EXIT_CANNOT_TELL) from None
    if json:
        print_json(summary.told())
    else:
        Terminal(highlight=False).print(_words(summary), soft_wrap=True)


@contextmanager
def session(name: str, master: str, remote: str | None) -> Iterator[SparkSession]:
    """The session to work with: that of spark-submit, one on a Connect server, or one on this machine."""
    from casque.spark.session import local_session

    if SUBMITTED in os.environ and remote is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.appName(name).getOrCreate()
    else:
        spark = local_session(
            name, master=master, remote=remote, settings={} if remote else {"spark.log.level": "ERROR"}
        )
    try:
        yield spark
    finally:
        spark.stop()


def _find_modules_here() -> None:
    """As `python -m` does, for this process and for executors that it starts."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


@contextmanager
def _signals(stop: threading.Event, console: Console) -> Iterator[None]:
    """The first one asks for a clean end; the second does not ask."""

    def received(number: int, _frame: Any) -> None:
        if stop.is_set():
            os._exit(EXIT_FAILED)
        stop.set()
        console.print(f"{signal.Signals(number).name}: finishing what runs; again to leave at once", highlight=False)

    # After the session was made: Spark puts a handler of its own on Ctrl-C, which would cancel what runs.
    before = {number: signal.signal(number, received) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(console: Console, quiet: bool) -> Iterator[Any]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet, refresh_per_second=4) as progress:
        task = progress.add_task("waiting for jobs")
        yield lambda summary: progress.update(task, description=_words(summary))


def _words(summary: Summary) -> str:
    further = ("snoozed", "cancelled", "declined", "running", "lost", "left", "given_back")
    others = {name: getattr(summary, name) for name in further}
    said = [f"{summary.done:,} done", f"{summary.failed:,} failed"]
    said += [f"{count:,} {name.replace('_', ' ')}" for name, count in others.items() if count]
    return f"{', '.join(said)}; {summary.rate:,.0f} jobs per second"


def _ended(console: Console, error: CasqueError, code: int) -> typer.Exit:
    console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
    return typer.Exit(code)
