"""The end of `casque demo`: what has just happened, as tables and as a page, made by Spark on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from casque.errors import CasqueError, NotInstalledError


def tell_history(queue: Path, console: Console) -> bool:
    """Runs the pipeline over the queue into a directory beside it, and writes the report there. False if it failed.

    Without Spark or Java there is a word about what is missing, and that is all: the queue needs neither.
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

    columns = (SpinnerColumn(), TextColumn("{task.description:<34}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Spark")
        spark = local_session("casque demo", settings={"spark.log.level": "ERROR"})
        try:
            from casque.spark.pipeline import run
            from casque.spark.report import build

            told = run(
                spark,
                queue.as_uri(),
                warehouse.as_uri(),
                progress=lambda what, *_: bar.update(task, description=f"pipeline: {what}"),
            )
            made = build(
                spark, warehouse.as_uri(), progress=lambda what: bar.update(task, description=f"report: {what}")
            )
        finally:
            spark.stop()
    page = warehouse / "report.html"
    page.write_text(made.html(), encoding="utf-8")
    table = Table(title=f"Tables in {warehouse}", show_header=False, title_justify="left")
    table.add_row("bronze/events", f"{told.events:,} new")
    table.add_row("silver/jobs", f"{told.jobs:,} new")
    table.add_row("silver/attempts", f"{told.attempts:,} new")
    table.add_row("gold, partitions written", f"{told.partitions:,}")
    console.print(table)
    return page
