"""`python -m simulation.chaos`: its arguments, and the stores it runs on."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live

from casque.clock import system_random
from simulation.chaos.display import picture, show
from simulation.chaos.failover import Rehearsal, rehearse, show_times
from simulation.chaos.run import Chaos, Plan, Way
from tests.support.servers import seaweedfs

STORES = ("file", "s3")
TRUE, SHIFTED = "true", "shifted"
RUNS = (
    (Way.BROKERS, TRUE),
    (Way.BROKERS, SHIFTED),
    (Way.EMBEDDED, SHIFTED),
    (Way.RING, SHIFTED),
    (Way.EMBEDDED_RING, SHIFTED),
)
"""With true clocks the log can be followed from beginning to end, beside the record."""


class Place(NamedTuple):
    """Where a queue is."""

    url: str
    options: dict[str, str]


def main() -> int:
    args = _arguments()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="casque-chaos-"))
    failed = False
    for store in STORES if args.store == "all" else (args.store,):
        if args.failovers:
            with place(store, folder / f"{store}-failover") as where:
                failed |= _rehearse(args, where, folder / f"{store}-failover", console)
            continue
        for way, clocks in RUNS:
            if args.way in (way.value, "all") and args.clocks in (clocks, "all"):
                runs = folder / f"{store}-{way.value}-{clocks}"
                with place(store, runs) as where:
                    failed |= _chaos(args, where, way, clocks, runs, console)
    if failed:
        console.print(f"records and outputs are in {folder}", soft_wrap=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def _chaos(args: argparse.Namespace, where: Place, way: Way, clocks: str, folder: Path, console: Console) -> bool:
    seed = args.seed if args.seed is not None else system_random().randrange(1_000_000)
    plan = Plan(
        url=where.url,
        options=where.options,
        folder=folder,
        way=way,
        layout=args.layout,
        clocks=clocks == SHIFTED,
        seconds=args.minutes * 60,
        brokers=args.brokers,
        workers=args.workers,
        producers=args.producers,
        rate=args.rate,
        every_s=args.every,
        heartbeat_s=args.heartbeat,
        lease_s=args.lease,
        seed=seed,
    )
    console.print(
        f"seed {seed}, {plan.url}, {way.value}, {clocks} clocks, records in {folder}", soft_wrap=True, highlight=False
    )
    chaos = Chaos(plan)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        report = asyncio.run(chaos.run(lambda now: live.update(picture(now), refresh=True)))
    show(report, console)
    return bool(report.problems)


def _rehearse(args: argparse.Namespace, where: Place, folder: Path, console: Console) -> bool:
    rehearsal = Rehearsal(
        url=where.url,
        options=where.options,
        folder=folder,
        brokers=args.brokers,
        heartbeat_s=args.heartbeat,
        lease_s=args.lease,
        rounds=args.failovers,
    )
    times = asyncio.run(rehearse(rehearsal))
    show_times(rehearsal, times, console)
    return not times.promise_kept(rehearsal)


@contextmanager
def place(store: str, folder: Path) -> Iterator[Place]:
    """A fresh queue on local files, or on an S3 server of its own."""
    if store == "file":
        folder.mkdir(parents=True, exist_ok=True)
        yield Place((folder / "queue").as_uri(), {})
        return
    with seaweedfs() as server:
        yield Place(server.fresh_url(), server.options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m simulation.chaos", description="Kill and stop brokers and workers, and check what is left."
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the faults last")
    parser.add_argument("--store", choices=(*STORES, "all"), default="all")
    parser.add_argument(
        "--way", choices=(*(way.value for way in Way), "all"), default="all", help="how processes reach the queue"
    )
    parser.add_argument(
        "--clocks",
        choices=(TRUE, SHIFTED, "all"),
        default="all",
        help="whether the processes' wall clocks differ by up to 40 minutes, and step",
    )
    parser.add_argument("--layout", choices=("log", "document"), default="log")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0, help="jobs per second")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults, on average")
    parser.add_argument("--heartbeat", type=float, default=0.3, help="seconds between a leader's signs of life")
    parser.add_argument("--lease", type=float, default=1.2, help="seconds of silence before another broker takes over")
    parser.add_argument("--seed", type=int, help="repeat the faults of another run, roughly")
    parser.add_argument(
        "--failovers", type=int, metavar="N", help="instead: time so many failovers after kill -9, and after SIGTERM"
    )
    return parser.parse_args()
