"""One page about what a queue has done: tables made by the pipeline, numbers computed by Spark."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from casque import Queue
from casque.spark import pipeline
from casque.spark.report import build
from casque.spark.session import local_session
from casque.testing import ManualClock


async def busy_night(url: str) -> None:
    """Four hours with a burst every minute, on a clock that is moved by hand."""
    began = datetime(2026, 2, 15, 21, 10, tzinfo=UTC)
    clock = ManualClock(round(began.timestamp() * 1000))
    async with Queue.open(url, clock=clock, max_attempts=2) as queue:
        for minute in range(240):
            for entrypoint in ("mail.send", "mail.send", "report.render"):
                await queue.enqueue(entrypoint, str(minute).encode())
            await clock.advance(5 + minute % 10)
            for job in await queue.dequeue(batch_size=10):
                await clock.advance(12 if job.entrypoint == "report.render" else 0.2)
                if job.entrypoint == "report.render" and int(job.payload) % 6 == 5:
                    await job.nack(error="TimeoutError: no answer")
                else:
                    await job.ack()
            await clock.advance(30)


def main() -> None:
    here = Path(mkdtemp())
    asyncio.run(busy_night(f"file://{here}/queue"))

    spark = local_session(settings={"spark.log.level": "ERROR"})
    pipeline.run(spark, f"file://{here}/queue", f"file://{here}/warehouse")
    report = build(spark, f"file://{here}/warehouse")
    spark.stop()

    page = here / "report.html"
    page.write_text(report.html())
    total = report.figures.total
    print(f"{report.figures.period}: {total.finished} finished, {total.died} of them died")
    print(f"half waited less than {total.wait.p50_ms:.0f} ms, one in ten more than {total.wait.p90_ms:.0f} ms")
    slowest = max(report.figures.entrypoints, key=lambda one: one.tally.run.p90_ms or 0)
    print(f"the slowest is {slowest.name}")
    print(f"the page has {len(page.read_text()) // 1000} kB")


if __name__ == "__main__":
    main()
