"""One page about what a queue has done: tables made by the pipeline, numbers computed by Spark."""

import asyncio
from pathlib import Path
from tempfile import mkdtemp

from casque.spark import pipeline
from casque.spark.report import build
from casque.spark.session import local_session
from casque.testing.known_history import write_known_history


def main() -> None:
    here = Path(mkdtemp())
    # Some hours of a busy queue: bursts, failures, retries, workers that vanish.
    asyncio.run(write_known_history(f"file://{here}/queue"))

    spark = local_session(settings={"spark.log.level": "ERROR"})
    pipeline.run(spark, f"file://{here}/queue", f"file://{here}/warehouse")
    report = build(spark, f"file://{here}/warehouse")
    spark.stop()

    page = here / "report.html"
    page.write_text(report.html())
    total = report.figures.total
    print(f"{report.figures.period}: {total.finished} finished, {total.dead} of them dead")
    print(f"half waited less than {total.wait.p50_ms:.0f} ms, one in ten more than {total.wait.p90_ms:.0f} ms")
    slowest = max(report.figures.entrypoints, key=lambda one: one.tally.run.p90_ms or 0)
    print(f"the slowest is {slowest.name}")
    print(f"the page has {len(page.read_text()) // 1000} kB")


if __name__ == "__main__":
    main()
