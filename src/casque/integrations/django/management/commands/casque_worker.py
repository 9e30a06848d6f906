"""`manage.py casque_worker`: run a worker for the tasks of a backend."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from casque.cli.logs import LogFormat, log_to_stderr
from casque.cli.worker import run_until_stopped
from casque.cli.worker_monitor import Monitor, parse_address
from casque.errors import CasqueError
from casque.integrations.django.backend import CasqueBackend
from casque.integrations.django.handlers import TaskHandlers
from casque.integrations.django.tasks_api import task_backends
from casque.worker import Worker


class Command(BaseCommand):
    help = "Run a worker for Django's tasks. SIGTERM and Ctrl-C stop it cleanly; a second signal ends it at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="which of TASKS to work for")
        parser.add_argument(
            "--queue-name",
            action="append",
            default=[],
            metavar="NAME",
            help="only tasks of this queue; may be repeated (default: all of the backend's QUEUES)",
        )
        parser.add_argument("--concurrency", type=int, default=16, metavar="TASKS", help="tasks that run at once")
        parser.add_argument(
            "--lease",
            type=float,
            default=60,
            metavar="SECONDS",
            help="how soon its tasks come back if this worker dies",
        )
        parser.add_argument(
            "--drain", type=float, default=30, metavar="SECONDS", help="how long running tasks may take when it stops"
        )
        parser.add_argument("--burst", action="store_true", help="end when nothing is due, instead of waiting")
        parser.add_argument(
            "--metrics",
            metavar="HOST:PORT",
            help="serve /healthz, /readyz and /metrics there; a port alone is for this machine only",
        )
        parser.add_argument(
            "--log-format", choices=[one.value for one in LogFormat], default="text", help="for people, or for programs"
        )
        parser.add_argument("--json", action="store_true", help="print what was done as JSON, for a program")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            handlers = TaskHandlers(_backend(options["backend"]), options["queue_name"])
            monitor = None if options["metrics"] is None else Monitor(parse_address(options["metrics"]))
            worker = Worker(
                handlers if monitor is None else monitor.watched(handlers),
                concurrency=options["concurrency"],
                lease=options["lease"],
                drain=options["drain"],
                burst=options["burst"],
            )
            handlers.worker_name = worker.name
            if monitor is not None:
                monitor.watch(worker, options["concurrency"])
            with log_to_stderr(LogFormat(options["log_format"]), options["verbosity"] - 1):
                run_until_stopped(worker, monitor, json=options["json"])
        except CasqueError as error:
            raise CommandError(str(error)) from error


def _backend(alias: str) -> CasqueBackend:
    found = task_backends[alias]
    if not isinstance(found, CasqueBackend):
        raise CommandError(
            f"TASKS[{alias!r}] is {type(found).__name__}, which this worker does not serve; give --backend, or set its "
            "BACKEND to casque.integrations.django.CasqueBackend"
        )
    return found
