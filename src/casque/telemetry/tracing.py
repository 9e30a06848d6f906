"""OpenTelemetry spans from the enqueueing of a job to its handler, for programs that trace.

casque never imports OpenTelemetry by itself: a program that traces has imported it and set a provider. For all others
this costs one lookup in a table. A job carries its trace in its headers, as W3C Trace Context defines; other programs
that enqueue may set `traceparent` there, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def tracer() -> Any | None:
    """A recording tracer, or None."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None  # no provider was set
    return trace.get_tracer("casque", tracer_provider=provider)


@contextmanager
def enqueueing(entrypoints: frozenset[str], jobs: int) -> Iterator[Mapping[str, str]]:
    """Open a span for adding jobs; yields the headers that link their handlers to it."""
    if (tracing := tracer()) is None:
        yield {}
        return
    from opentelemetry import propagate, trace

    what = next(iter(entrypoints)) if len(entrypoints) == 1 else f"{len(entrypoints)} entrypoints"
    attributes = {
        "messaging.system": "casque",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": what,
        "messaging.batch.message_count": jobs,
    }
    with tracing.start_as_current_span(f"enqueue {what}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield carrier


class Handling:
    """The span of one call of a handler. Begun and ended in one task, in which it is the current span."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any, token: Any) -> None:
        self._span = span
        self._token = token

    @classmethod
    def begin(cls, entrypoint: str, job_id: str, attempt: int, headers: Mapping[str, str]) -> Handling | None:
        """None if the program does not trace."""
        if (tracing := tracer()) is None:
            return None
        from opentelemetry import context, propagate, trace

        attributes = {
            "messaging.system": "casque",
            "messaging.operation.type": "process",
            "messaging.operation.name": "handle",
            "messaging.destination.name": entrypoint,
            "messaging.message.id": job_id,
            "casque.attempt": attempt,
        }
        span = tracing.start_span(
            f"handle {entrypoint}",
            context=propagate.extract(headers),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        )
        return cls(span, context.attach(trace.set_span_in_context(span)))

    def carried(self) -> dict[str, str]:
        """Headers for another process that continues this span."""
        from opentelemetry import propagate, trace

        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(self._span))
        return carrier

    def end(self, how: str, error: str | None) -> None:
        from opentelemetry import context, trace

        self._span.set_attribute("casque.outcome", how)
        if error is not None:
            said, _, where = error.partition("\n")
            kind, _, message = said.partition(": ")
            self._span.add_event(
                "exception",
                {"exception.type": kind, "exception.message": message, "exception.stacktrace": where or said},
            )
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, said))
        self._span.end()
        context.detach(self._token)


@contextmanager
def going_on(carried: Mapping[str, str]) -> Iterator[None]:
    """In another process: continue the span that came along in `carried`."""
    if not carried or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(carried))
    try:
        yield
    finally:
        context.detach(token)
