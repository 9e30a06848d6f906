"""`casque cost`: estimate what a queue costs at a store."""

from __future__ import annotations

from math import inf
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from casque.cli.command import command
from casque.cli.cost.model import IDLE_GETS, Estimate, Load, embedded, through_brokers, within_budget
from casque.cli.options import Json, parse_span
from casque.cli.output import Terminal, answer
from casque.errors import InvalidInputError
from casque.prices import PRICES, Prices, StoreKind

DAY_S = 86_400


class Costs(msgspec.Struct, frozen=True):
    """Estimates for both ways to run a queue."""

    store: StoreKind
    load: Load
    round_trip_ms: float
    brokers: Estimate
    embedded: Estimate
    requests_per_day: float | None = None
    """The budget of each process; None if there is none."""


@command(
    "cost",
    examples=[
        "casque cost --rate 10",
        "casque cost --rate 10 --interval 2s",
        "casque cost --rate 10 --requests-per-day 100000",
        "casque cost --rate 200 --batch 20 --workers 8 --store s3-express",
        "casque cost --rate 0.1 --put-price 0.0055 --get-price 0.00044 --json",
    ],
)
def cost(
    rate: Annotated[float, typer.Option("--rate", "-r", min=0, max=1e6, help="Jobs per second, on average.")] = 1.0,
    batch: Annotated[
        float, typer.Option("--batch", min=1, max=1e5, help="Jobs that are enqueued, claimed and settled at once.")
    ] = 1.0,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=10_000, help="Worker processes.")] = 2,
    brokers: Annotated[int, typer.Option("--brokers", "-b", min=1, max=100, help="Brokers, one of which leads.")] = 2,
    run: Annotated[str, typer.Option("--run", metavar="SPAN", help="How long a job takes: 2s, 5m.")] = "1s",
    lease: Annotated[
        str, typer.Option("--job-lease", "--lease", metavar="SPAN", help="The lease of a job at a worker.")
    ] = "60s",
    interval: Annotated[
        str, typer.Option("--interval", metavar="SPAN", help="The queue's commit_interval: 2s between two commits.")
    ] = "0s",
    per_minute: Annotated[
        int | None,
        typer.Option("--requests-per-minute", metavar="N", min=1, help="The queue's requests_per_minute, per process."),
    ] = None,
    per_day: Annotated[
        int | None,
        typer.Option("--requests-per-day", metavar="N", min=1, help="The queue's requests_per_day, per process."),
    ] = None,
    store: Annotated[StoreKind, typer.Option("--store", "-s", help="Store whose prices apply.")] = StoreKind.S3,
    latency: Annotated[
        float | None,
        typer.Option("--latency", metavar="MS", min=0.01, max=60_000, help="A write's round trip, if not the usual."),
    ] = None,
    put_price: Annotated[
        float | None, typer.Option("--put-price", metavar="DOLLARS", min=0, help="Price of 1,000 write requests.")
    ] = None,
    get_price: Annotated[
        float | None, typer.Option("--get-price", metavar="DOLLARS", min=0, help="Price of 1,000 read requests.")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate what a queue costs at a store: requests and dollars, through brokers and with workers that open the
    bucket themselves.

    Estimates lie on the high side: jobs come at random, and each takes three calls, to be enqueued, claimed and
    settled. Workers batch those by themselves when they are busy, and --batch says how well. Storage and transfer are
    left out: finished jobs leave little behind, and within a region transfer is free. No store is asked; `casque bench`
    measures.

    Exit code 0: shown. 2: the question makes no sense.
    """
    budget = min(inf if per_minute is None else per_minute / 60, inf if per_day is None else per_day / DAY_S)
    load = Load(
        jobs_per_s=rate,
        batch=batch,
        workers=workers,
        run_s=parse_span("--run", run).total_seconds(),
        lease_s=parse_span("--job-lease", lease).total_seconds(),
        interval_s=parse_span("--interval", interval).total_seconds(),
        idle_gets=min(IDLE_GETS, budget / 2),
    )
    if load.interval_s < 0:
        raise InvalidInputError("--interval is a span of time, for example 2s, or 0s")
    if load.lease_s <= 0 or load.run_s < 0:
        raise InvalidInputError("--job-lease and --run are spans of time, for example 60s, and a lease is not empty")
    prices = _prices(store, put_price, get_price)
    trip_ms = latency if latency is not None else prices.round_trip_ms
    costs = Costs(
        store,
        load,
        trip_ms,
        within_budget(lambda load: through_brokers(load, prices, round_trip_ms=trip_ms, brokers=brokers), load, budget),
        within_budget(lambda load: embedded(load, prices, round_trip_ms=trip_ms), load, budget),
        None if budget == inf else budget * DAY_S,
    )
    answer(costs, lambda: _print_costs(costs, prices, brokers), json=json)


def _prices(store: StoreKind, put: float | None, get: float | None) -> Prices:
    listed = PRICES[store]
    return Prices(
        listed.put if put is None else put / 1000, listed.get if get is None else get / 1000, listed.round_trip_ms
    )


def _print_costs(costs: Costs, prices: Prices, brokers: int) -> None:
    console = Terminal(highlight=False)
    load = costs.load
    console.print(
        f"{load.jobs_per_s:g} jobs per second, {load.workers} {'worker' if load.workers == 1 else 'workers'}, "
        f"{costs.store.value}: a write takes {costs.round_trip_ms:g} ms, a million of them cost "
        f"${prices.put * 1e6:.2f}, a million reads ${prices.get * 1e6:.2f}",
        soft_wrap=True,
    )
    console.print()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("calls/s", "commits/s", "writes/s", "reads/s", "$/month", "$/million jobs"):
        table.add_column(name, justify="right", no_wrap=True)
    led = f"{brokers} brokers" if brokers > 1 else "1 broker"
    for name, one in ((led, costs.brokers), ("embedded", costs.embedded)):
        table.add_row(
            name,
            *map(_rate, (one.calls_per_s, one.commits_per_s, one.puts_per_s, one.gets_per_s)),
            _money(one.dollars_per_month),
            "" if one.dollars_per_million_jobs is None else _money(one.dollars_per_million_jobs),
        )
    console.print(table)
    if costs.requests_per_day is not None:
        console.print()
        for name, one in ((led, costs.brokers), ("embedded", costs.embedded)):
            console.print(_budget(name, one, costs.requests_per_day), soft_wrap=True)


def _budget(name: str, one: Estimate, per_day: float) -> str:
    needs = one.requests_per_process_per_s * DAY_S
    apart = f"commits {one.interval_s:.3g} s apart" if one.interval_s else "commits at once"
    fits = "within" if needs <= per_day * 1.001 else "over"
    return f"{name}: {apart}, {needs:,.0f} requests a day of a process that commits, {fits} its {per_day:,.0f}"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _money(dollars: float) -> str:
    return f"{dollars:,.2f}" if dollars >= 0.01 or not dollars else f"{dollars:.4f}"
