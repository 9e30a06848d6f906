"""A DataFrame becomes jobs: in one commit, each row once, however often it is tried.

Run: python examples/spark/bulk_enqueue.py   (needs pip install "casque[spark]" and a Java, or "casque[spark-java]")
"""

import asyncio
import tempfile
from pathlib import Path

from casque import Queue
from casque.spark.session import local_session


def main() -> None:
    spark = local_session("bulk enqueue", master="local[2]", settings={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as directory:
        url = Path(directory, "queue").as_uri()

        orders = spark.range(1, 10_001).selectExpr(
            "'send-invoice' as entrypoint",
            "struct(id as number, concat('customer-', id % 100) as customer) as payload",
            "if(id % 100 = 0, 0, 5) as priority",  # every hundredth is urgent
        )
        for attempt in (1, 2):  # the second time nothing happens: this version was written before
            orders.write.format("casque").options(txnId="invoices", txnVersion=20260215).mode("append").save(url)
            print(f"attempt {attempt}: {asyncio.run(waiting(url)):,} jobs are waiting")
        asyncio.run(work(url))
    spark.stop()


async def waiting(url: str) -> int:
    async with Queue.open(url) as queue:
        return (await queue.stats()).totals.ready


async def work(url: str) -> None:
    async with Queue.open(url) as queue:
        jobs = await queue.dequeue("send-invoice", batch_size=200)
        urgent = sum(job.priority == 0 for job in jobs)
        print(f"claimed {len(jobs)}: the {urgent} urgent ones first, {jobs[0].payload.decode()}")
        for job in jobs:
            await job.ack()


if __name__ == "__main__":
    main()
