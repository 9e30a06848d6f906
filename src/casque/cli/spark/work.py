"""`casque spark work`: run the jobs of a queue on Spark's executors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casque.cli.apps import load_app
from casque.cli.command import command
from casque.cli.exits import EXIT_CANNOT_TELL, EXIT_FAILED, fail
from casque.cli.options import Entrypoints, Json, Settings, StoreOptions, parse_options
from casque.cli.output import answer, say, spinner
from casque.cli.process import add_current_directory
from casque.cli.spark.session import SparkOptions, Via, ViaOption
from casque.cli.target import BrokerCa, QueueName, QueueTarget, QueueUrl
from casque.client.settings_text import parse_settings
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, WorkFailedError

if TYPE_CHECKING:
    from casque.spark.work import Summary


class Takes(StrEnum):
    """What a handler takes."""

    JOB = "job"
    ARROW = "arrow"
    PANDAS = "pandas"


class Ends(StrEnum):
    """When a run ends."""

    DUE = "due"
    EMPTY = "empty"


@command(
    "spark work",
    examples=[
        "casque spark work s3://bucket/orders --handler mail.jobs:send --entrypoint send",
        "casque spark work s3://bucket/orders --handler mail.jobs:send --follow --remote sc://spark.example",
        "casque spark work --app shop.jobs:app --until empty",
        "spark-submit --master k8s://... $(which casque) spark work s3://bucket/orders --handler mail.jobs:send",
    ],
)
def work(
    url: QueueUrl = None,
    queue: QueueName = None,
    ca: BrokerCa = None,
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
    entrypoint: Entrypoints = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="Jobs claimed at a time; by default as many as take a few seconds.")
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            "--job-lease",
            "--lease",
            metavar="SECONDS",
            help="The lease of its jobs: how soon they come back if this driver dies.",
        ),
    ] = 60,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="Time for running batches to finish when it stops.")
    ] = 30,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long the jobs of a batch may run; then waiting ones go back."
        ),
    ] = 3600,
    until: Annotated[
        Ends,
        typer.Option("--until", help="End when nothing is due, or when nothing is left: not even delayed or claimed."),
    ] = Ends.DUE,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more jobs, until SIGTERM or Ctrl-C.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="Process at most this many jobs.")] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="Split a batch into at most this many parts.")] = None,
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
        typer.Option(
            "--results-option", metavar="NAME=VALUE", help="Option of the warehouse's store; may be repeated."
        ),
    ] = None,
    via: ViaOption = Via.AUTO,
    setting: Settings = None,
    option: StoreOptions = None,
    *,
    spark: SparkOptions,
    json: Json = False,
) -> None:
    """Run the jobs of a queue on Spark's executors.

    The driver claims jobs, keeps their leases alive and settles them; executors only call the handler. The bytes that
    it returns go to the archive, an exception makes the attempt a failed one. Modules in the directory that this is
    started from are found too, if the session is local.

    With --app the functions of an app are called, each for its own jobs, with its own time limit, attempts and
    back-off; jobs of others are never claimed. The queue is the app's own, unless another one is named.

    Ends when nothing is due. SIGTERM and Ctrl-C end it cleanly: jobs that were only claimed go back, running ones have
    the time of --drain, and then they are interrupted and go back too, which is no attempt. A second signal ends it on
    the spot, and jobs come back by their leases.

    Exit code 0: ended, though jobs may have failed. 1: the handler or Spark could not be used, or the queue is damaged.
    2: it could not start.
    """
    stop = threading.Event()
    try:
        if (handler is None) == (app is None):
            raise InvalidInputError("give --handler module:function or --app module:app: what is to be called?")
        settings = parse_settings(setting or [])
        options = parse_options(option)
        tls = None
        if queue is not None or ca is not None or (url is None and app is None):
            place = QueueTarget(
                url=url, queue=queue, app=app if url is None and queue is None else None, ca=ca, option=option
            ).resolve()
            url, options, tls, settings = place.url, place.options, place.tls, {**place.changes(), **settings}
        _add_module_path()
        from casque.spark.work import process
        from casque.spark.work.calling import by_name

        _ = by_name(handler) if handler else load_app(str(app))  # before a session is made, which takes a while

        with (
            spark.session("casque spark work") as session,
            _stop_on_signals(stop),
            spinner("waiting for jobs", wanted=not json) as progress,
        ):
            summary = process(
                session,
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
                results_options=parse_options(results_option) or None,
                via=via.value,
                options=options or None,
                tls=tls,
                stop=stop,
                on_progress=lambda summary: progress(_describe(summary)),
                **settings,
            )
    except (WorkFailedError, CorruptQueueError) as error:
        fail(error, EXIT_FAILED)
    except CasqueError as error:
        fail(error, EXIT_CANNOT_TELL)
    answer(summary.as_dict(), _describe(summary), json=json)


def _add_module_path() -> None:
    """Make modules here importable for this process, and for executors that it starts."""
    paths = [add_current_directory(), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first signal, and exit at once at the second."""

    def received(number: int, _frame: Any) -> None:
        if stop.is_set():
            os._exit(EXIT_FAILED)
        stop.set()
        say(f"{signal.Signals(number).name}: finishing what runs; again to leave at once", err=True)

    # After the session was made: Spark puts a handler of its own on Ctrl-C, which would cancel running tasks.
    before = {number: signal.signal(number, received) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(summary: Summary) -> str:
    more = ("snoozed", "cancelled", "declined", "running", "lost", "left", "given_back")
    others = {name: getattr(summary, name) for name in more}
    parts = [f"{summary.done:,} done", f"{summary.failed:,} failed"]
    parts += [f"{count:,} {name.replace('_', ' ')}" for name, count in others.items() if count]
    return f"{', '.join(parts)}; {summary.rate:,.0f} jobs per second"
