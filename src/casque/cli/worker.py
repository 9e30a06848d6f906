"""`casque worker`: run a worker for the jobs of an app."""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from casque.cli.apps import load_app
from casque.cli.command import Options, command
from casque.cli.logs import LogFormat, log_to_stderr
from casque.cli.options import ClaimedZones, Entrypoints, LogFormatOption, StoreOptions, parse_options
from casque.cli.output import Terminal, print_json
from casque.cli.process import collect_rarely, fast_loop, on_stop_signal
from casque.cli.reaching import Brokers, watch
from casque.cli.reloading import run_again_on_changes
from casque.cli.target import BrokerCa, QueueName, with_ca
from casque.client.config import named_queue
from casque.errors import InvalidInputError
from casque.storage.url import is_address

if TYPE_CHECKING:
    from casque.cli.worker_monitor import Monitor
    from casque.worker import Summary, Worker


class Via(StrEnum):
    EMBEDDED = "embedded"
    BROKER = "broker"


class WorkerOptions(Options, frozen=True, kw_only=True):
    """What every worker has: an app, a queue, and how it stops and reports."""

    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the app is, for example shop.jobs:app.", show_default=False),
    ]
    entrypoint: Entrypoints = None
    zone: ClaimedZones = None
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="Time for running jobs to finish when the worker stops.")
    ] = 30
    burst: Annotated[
        bool, typer.Option("--burst", "--until-empty", help="Exit when no jobs are due, instead of waiting.")
    ] = False
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Another queue than the app's own: its bucket, or its brokers."),
    ] = None
    queue: QueueName = None
    via: Annotated[
        Via | None, typer.Option("--via", help="Open the bucket, or go through the broker that leads the queue.")
    ] = None
    token: Annotated[str | None, typer.Option("--token", help="Token for the broker; CASQUE_TOKEN unless set.")] = None
    ca: BrokerCa = None
    option: StoreOptions = None
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /healthz, /readyz and /metrics there; a port alone is for this machine only.",
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False
    log_format: LogFormatOption = LogFormat.TEXT
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log what happens to every job; twice for everything.")
    ] = 0

    def run(self, **settings: Any) -> None:
        """Run a worker with these settings until it is stopped, and report what it did."""
        with log_to_stderr(self.log_format, self.verbose):
            from casque.cli.worker_monitor import Monitor, parse_address
            from casque.worker import Worker

            monitor = None if self.metrics is None else Monitor(parse_address(self.metrics))
            url, opening = self._place()
            app = load_app(self.app)
            worker = Worker(
                app if monitor is None else monitor.watched(app),
                entrypoints=self.entrypoint,
                zones=self.zone or None,
                drain=self.drain,
                burst=self.burst,
                url=url,
                opening=opening,
                **settings,
            )
            if monitor is not None:
                consumer = settings.get("consumer")
                monitor.watch(worker, settings["concurrency"] if consumer is None else consumer.workers)
            run_until_stopped(worker, monitor, json=self.json)

    def _place(self) -> tuple[str | None, dict[str, Any]]:
        """The queue and how it is opened, as far as these are not the app's own."""
        url, opening = self.url, dict[str, Any]()
        if self.queue is not None:
            if url is not None:
                raise InvalidInputError("give --url or --queue, not both")
            place = named_queue(self.queue)
            url, opening = place.url, place.opening()
            if not is_address(url) and self.via is not Via.BROKER:
                opening.pop("tls", None)  # for the brokers of this queue, which are not called
        if self.option:
            opening["options"] = {**opening.get("options", {}), **parse_options(self.option)}
        if self.ca is not None:
            opening["tls"] = with_ca(opening.get("tls"), self.ca)
        if self.via is not None:
            opening["via"] = "broker" if self.via is Via.BROKER else None
        if self.token is not None:
            opening["token"] = self.token
        return url, opening


@command(
    "worker",
    examples=[
        "casque worker shop.jobs:app --concurrency 50",
        "casque worker shop.jobs:app --entrypoint send_mail --lease 30 -v",
        "casque worker shop.jobs:app --zone acme --zone umbrella",
        "casque worker shop.jobs:app --url grpc://broker:7700 --token $TOKEN",
        "casque worker shop.jobs:app --metrics 127.0.0.1:9102",
        "casque worker shop.jobs:app --burst",
        "casque worker shop.jobs:app --reload",
    ],
)
def worker(
    *,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Jobs that run at once.")] = 16,
    lease: Annotated[
        float,
        typer.Option(
            "--job-lease",
            "--lease",
            metavar="SECONDS",
            help="The lease of its jobs: how soon they come back if this worker dies.",
        ),
    ] = 60,
    recycle_after: Annotated[
        int | None,
        typer.Option("--recycle-after", metavar="JOBS", help="Replace a handler process after this many jobs."),
    ] = None,
    recycle_memory: Annotated[
        int | None,
        typer.Option("--recycle-memory", metavar="MIB", help="Replace a handler process that has grown this large."),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="For development: start again when a Python file below the current directory changes."
        ),
    ] = False,
    options: WorkerOptions,
) -> None:
    """Run a worker for an app's jobs.

    Claims jobs in batches, only of entrypoints that the app has a function for, and keeps their leases while they run,
    also while a function is too busy to let anything else in. Modules in the directory that this is started from are
    found too. Any number of workers may run, on any machines.

    SIGTERM and Ctrl-C stop it cleanly: it claims nothing more, jobs that were not started go back at once, and running
    jobs have the time of --drain; then they are stopped and go back too, which is no attempt. A second signal ends it
    on the spot, and its jobs come back when their leases have run out.

    Exit code 0: ended, though jobs may have failed. 1: the queue is damaged, or is led by a broker. 2: it could not
    start, or the queue cannot be used.
    """
    if reload:
        run_again_on_changes()
        return
    options.run(concurrency=concurrency, lease=lease, recycle_after=recycle_after, recycle_memory=recycle_memory)


def run_until_stopped(worker: Worker, monitor: Monitor | None = None, *, json: bool) -> None:
    """Run a worker until it ends or a signal stops it, and report what it did.

    Does not return if a handler cannot be stopped: see `casque.worker.handback`.
    """
    from casque.worker.handback import give_back_after

    console = Terminal(stderr=True, highlight=False)
    collect_rarely()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        summary = runner.run(_run(worker, console, monitor, quiet=json))
        if json:
            print_json({"worker": worker.name, **msgspec.to_builtins(summary)})
        else:
            console.print(_describe(summary))
        if worker.unstopped:
            # Within the runner, whose end waits for coroutines that ignore their cancellation.
            url, opening = worker.place
            give_back_after(url, opening, worker=worker.name, leases=worker.unstopped)


async def _run(worker: Worker, console: Console, monitor: Monitor | None, *, quiet: bool) -> Summary:
    def stop(number: signal.Signals) -> None:
        if not quiet:
            console.print(f"{number.name}: stopping; again to stop at once")
        if monitor is not None:
            monitor.stopping()
        worker.stop()

    on_stop_signal(stop)
    if not quiet:
        zones = f" of {', '.join(worker.zones)}" if worker.zones is not None else ""
        console.print(f"{worker.name} works on {', '.join(worker.entrypoints)}{zones}", soft_wrap=True)
    url, opening = worker.place
    brokers = Brokers.of(url, opening.get("tls")) if isinstance(url, str) else None
    if monitor is None:
        return await watch(worker.run(), brokers)
    async with monitor.serving() as address:
        console.print(f"metrics at http://{address}/metrics", soft_wrap=True)
        return await watch(worker.run(), brokers)


def _describe(summary: Summary) -> str:
    counts = msgspec.to_builtins(summary)
    first = [f"{counts.pop(name):,} {name}" for name in ("claimed", "done", "failed")]
    return ", ".join(first + [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count])
