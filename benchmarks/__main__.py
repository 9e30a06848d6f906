"""`python -m benchmarks`: run the sections, show the tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    bulk,
    cost,
    deep,
    document,
    latency,
    log,
    machine,
    over_grpc,
    plot,
    ring,
    spark_pipeline,
    spark_read,
    spark_work,
    spark_write,
    state,
    zones,
)
from benchmarks.field import section as field
from benchmarks.report import Section, Steps, print_section, print_targets
from benchmarks.scale import FULL, QUICK, TINY, Scale

SECTIONS: dict[str, Callable[[Scale, Steps], Section]] = {
    "state": state.measure,
    "document": document.measure,
    "log": log.measure,
    "deep": deep.measure,
    "bulk": bulk.measure,
    "zones": zones.measure,
    "latency": latency.measure,
    "cost": cost.measure,
    "ring": ring.measure,
    "grpc": over_grpc.measure,
    "field": field.measure,
    "spark-read": spark_read.measure,
    "spark-write": spark_write.measure,
    "spark-pipeline": spark_pipeline.measure,
    "spark-work": spark_work.measure,
}


def main() -> None:
    args = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    before = machine.load()
    about = machine.describe()
    sections = _run(args.only, args.scale)
    about["load average"] = f"{before} before, {machine.load()} after"
    for name, text in about.items():
        console.print(f"{name}: {text}", highlight=False)
    for section in sections.values():
        print_section(console, section)
    print_targets(console, sections)
    if args.plot is not None and "cost" in sections:
        args.plot.write_text(plot.drawn(cost.curves(sections["cost"])))
    if args.json is not None:
        whole = {"machine": about, "sections": {name: asdict(section) for name, section in sections.items()}}
        args.json.write_text(json.dumps(whole, indent=1))


def _run(names: list[str], scale: Scale) -> dict[str, Section]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sections: dict[str, Section] = {}
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:
        for name in names:
            steps = Steps(progress, name)
            sections[name] = SECTIONS[name](scale, steps)
            steps.finish()
    return sections


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="How fast casque is, side by side with jqueue 1.0")
    parser.add_argument("--quick", dest="scale", action="store_const", const=QUICK, default=FULL, help="some minutes")
    parser.add_argument("--tiny", dest="scale", action="store_const", const=TINY, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=_names, default=list(SECTIONS), metavar="NAME[,NAME]", help=", ".join(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to a file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the cost by depth as an SVG")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"there is no section {name!r}; there are {', '.join(SECTIONS)}")
    # Always in this order: sections share a JVM, which has the settings of the one that started it, and Spark's own
    # readers are to have theirs.
    return [name for name in SECTIONS if name in names]


if __name__ == "__main__":
    main()
