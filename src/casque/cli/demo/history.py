"""The end of `casque demo`: its history as tables and as a page, made by Spark on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from casque.cli.output import spinner
from casque.errors import CasqueError, NotInstalledError


def report_history(queue: Path, console: Console) -> bool:
    """Run the pipeline over the queue into a directory beside it, and write the report there. False if it failed.

    Without Spark or Java it only says what is missing: the queue needs neither.
    """
    warehouse = queue.with_name(f"{queue.name}-warehouse")
    try:
        page = _tables_and_page(queue, warehouse, console)
    except NotInstalledError as missing:
        console.print(f"No tables and no report this time. {missing}", highlight=False, soft_wrap=True)
        return True
    except CasqueError as error:
        console.print(f"The pipeline failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return False
    console.print(f"The report: {page}", soft_wrap=True)
    return True


def _tables_and_page(queue: Path, warehouse: Path, console: Console) -> Path:
    from casque.spark.session import local_session

    with spinner("starting Spark") as progress:
        spark = local_session("casque demo", settings={"spark.log.level": "ERROR"})
        try:
            from casque.spark.pipeline import run
            from casque.spark.report import build

            summary = run(
                spark,
                queue.as_uri(),
                warehouse.as_uri(),
                progress=lambda what, *_: progress(f"pipeline: {what}"),
            )
            made = build(spark, warehouse.as_uri(), progress=lambda what: progress(f"report: {what}"))
        finally:
            spark.stop()
    page = warehouse / "report.html"
    page.write_text(made.html(), encoding="utf-8")
    table = Table(title=f"Tables in {warehouse}", show_header=False, title_justify="left")
    table.add_row("bronze/events", f"{summary.events:,} new")
    table.add_row("silver/jobs", f"{summary.jobs:,} new")
    table.add_row("silver/attempts", f"{summary.attempts:,} new")
    table.add_row("files written", f"{summary.files:,}")
    console.print(table)
    return page
