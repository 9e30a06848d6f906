"""Spans from the enqueueing of a job to its handler, with OpenTelemetry's own tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from casque import App, JobContext, Queue
from casque.worker import Worker
from tests.acceptance import process_app

Spans = dict[str, ReadableSpan]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # it can be set once in a process, and tests are many
    return exporter


def by_name(exporter: InMemorySpanExporter) -> Spans:
    return {span.name: span for span in exporter.get_finished_spans()}


def parents(spans: Spans, name: str) -> list[str]:
    """The names of the spans around it, from the inside."""
    names = {span.context.span_id: span.name for span in spans.values() if span.context is not None}
    found: list[str] = []
    while (parent := spans[name].parent) is not None:
        name = names[parent.span_id]
        found.append(name)
    return found


async def test_a_trace_goes_from_whoever_enqueues_to_what_the_handler_does(told: InMemorySpanExporter) -> None:
    app = App("memory://traced", max_attempts=1)

    @app.job()
    async def outer(context: JobContext) -> None:
        assert "traceparent" in context.headers
        with trace.get_tracer("test").start_as_current_span("work"):
            await inner.using(headers={"kind": "test"}).enqueue()

    @app.job()
    def inner(context: JobContext) -> None:
        assert context.headers["kind"] == "test"
        with trace.get_tracer("test").start_as_current_span("inner work"):
            raise ValueError("no such user")

    async with app:
        with trace.get_tracer("test").start_as_current_span("request"):
            await outer.enqueue()
        await Worker(app, burst=True).run()

    spans = by_name(told)
    above = ["handle outer", "enqueue outer", "request"]
    assert parents(spans, "work") == above
    assert parents(spans, "inner work") == ["handle inner", "enqueue inner", "work", *above]
    assert spans["enqueue outer"].kind is trace.SpanKind.PRODUCER
    assert spans["handle outer"].kind is trace.SpanKind.CONSUMER
    assert dict(spans["handle outer"].attributes or {})["casque.outcome"] == "done"
    assert dict(spans["handle outer"].attributes or {})["messaging.destination.name"] == "outer"
    failed = spans["handle inner"]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "ValueError: no such user"
    [event] = failed.events
    assert dict(event.attributes or {})["exception.type"] == "ValueError"


async def test_a_trace_goes_on_in_a_process(told: InMemorySpanExporter, tmp_path: Path) -> None:
    async with Queue.open(tmp_path.as_uri()) as queue:
        with process_app.app.through(queue), trace.get_tracer("test").start_as_current_span("request"):
            handle = await process_app.trace_id.enqueue()
            await Worker(process_app.app, url=tmp_path.as_uri(), burst=True).run()
            seen = await handle.result(timeout=60)

    context = by_name(told)["request"].context
    assert context is not None
    assert seen == f"{context.trace_id:032x}"


async def test_without_a_provider_nothing_is_written_into_headers() -> None:
    app = App("memory://untraced")

    @app.job()
    async def plain(context: JobContext) -> bool:
        return not context.headers

    async with app:
        handle = await plain.enqueue()
        await Worker(app, burst=True).run()
        assert await handle.result(timeout=60)


def test_a_worker_does_not_import_opentelemetry() -> None:
    code = "import sys, casque.worker, casque; casque.App('memory://'); print('opentelemetry' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said == "False\n"
