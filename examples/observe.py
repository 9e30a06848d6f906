"""What a worker tells: hooks of the application, and a trace from whoever enqueued a job to what its function does."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import casque
from casque import JobEvent
from casque.worker import Worker

app = casque.App("memory://observe-example")


@app.job()
async def ship(order: int) -> str:
    with trace.get_tracer("shop").start_as_current_span("ask the carrier"):
        return f"order {order} is on its way"


@app.job(max_attempts=2, backoff=0)
def charge(order: int) -> None:
    raise ConnectionError(f"the bank does not answer for order {order}")


@app.on_completed
async def tell(event: JobEvent) -> None:
    print("completed:", event.context.entrypoint, event.result)


@app.on_failed
def page(event: JobEvent) -> None:
    if event.final:
        said = str(event.error).partition("\n")[0]
        print("failed for good:", event.context.entrypoint, "after attempt", event.context.attempt, "with", said)


async def main(spans: InMemorySpanExporter) -> None:
    async with app:
        with trace.get_tracer("shop").start_as_current_span("POST /orders"):
            await ship.enqueue(7)
        await charge.enqueue(7)
        await Worker(app, burst=True, concurrency=1).run()

    finished = {span.context.span_id: span for span in spans.get_finished_spans() if span.context is not None}
    [span] = [span for span in finished.values() if span.name == "ask the carrier"]
    while span.parent is not None:
        print(span.name, "<-", end=" ")
        span = finished[span.parent.span_id]
    print(span.name)


if __name__ == "__main__":
    exporter = InMemorySpanExporter()  # an application sends its spans somewhere else
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    asyncio.run(main(exporter))
