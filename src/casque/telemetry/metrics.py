"""Metrics for operators: counters, gauges and histograms in Prometheus' text format.

Names are in base units (seconds, bytes), and counters end in `_total`. A family is made once and looked up by its name,
so parts need not pass them to each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from casque.printable import printable_lines

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a commit to memory up to a long poll."""
SPANS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
"""From a job that is taken at once to one that runs for hours."""

Shows: TypeAlias = Callable[[tuple[str, ...]], bool]
"""Whether the numbers of these label values are part of a text."""


class Number:
    """One number of a family, for one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Spread:
    """Counts of observed sizes by bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, size: float) -> None:
        # A size equal to a bound belongs to the bucket below.
        self.counts[bisect_left(self.bounds, size)] += 1
        self.sum += size


class _Family:
    kind = ""

    def __init__(self, name: str, about: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.about = about
        self.labels = labels

    def lines(self, shows: Shows | None = None) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.about)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples(shows)

    def _samples(self, shows: Shows | None) -> Iterator[str]:
        raise NotImplementedError

    def _label_text(self, values: tuple[str, ...], more: str = "") -> str:
        pairs = [f'{name}="{_quoted(value)}"' for name, value in zip(self.labels, values, strict=True)]
        text = ",".join([*pairs, more] if more else pairs)
        return f"{{{text}}}" if text else ""


class _Numbers(_Family):
    def __init__(self, name: str, about: str, labels: tuple[str, ...] = ()) -> None:
        super().__init__(name, about, labels)
        self._numbers: dict[tuple[str, ...], Number] = {}

    def of(self, *values: str) -> Number:
        """The number of these label values, in the order of the family's labels."""
        number = self._numbers.get(values)
        if number is None:
            assert len(values) == len(self.labels), (self.name, values)
            number = self._numbers[values] = Number()
        return number

    def forget(self) -> None:
        """Drop all values, so that outdated ones are not shown."""
        self._numbers.clear()

    def _samples(self, shows: Shows | None) -> Iterator[str]:
        for values, number in self._numbers.items():
            if shows is not None and not shows(values):
                continue
            yield f"{self.name}{self._label_text(values)} {_number(number.value)}"


class Counter(_Numbers):
    """Only rises, from 0 at the start of the process unless its help text says otherwise."""

    kind = "counter"


class Gauge(_Numbers):
    """Rises and falls."""

    kind = "gauge"


class Histogram(_Family):
    kind = "histogram"

    def __init__(
        self, name: str, about: str, labels: tuple[str, ...] = (), *, bounds: Sequence[float] = SECONDS
    ) -> None:
        super().__init__(name, about, labels)
        self._bounds = tuple(bounds)
        self._spreads: dict[tuple[str, ...], Spread] = {}

    def of(self, *values: str) -> Spread:
        spread = self._spreads.get(values)
        if spread is None:
            assert len(values) == len(self.labels), (self.name, values)
            spread = self._spreads[values] = Spread(self._bounds)
        return spread

    def _samples(self, shows: Shows | None) -> Iterator[str]:
        for values, spread in self._spreads.items():
            if shows is not None and not shows(values):
                continue
            below = 0
            for bound, count in zip([*map(_number, self._bounds), "+Inf"], spread.counts, strict=True):
                below += count
                edge = f'le="{bound}"'
                yield f"{self.name}_bucket{self._label_text(values, edge)} {below}"
            yield f"{self.name}_sum{self._label_text(values)} {_number(spread.sum)}"
            yield f"{self.name}_count{self._label_text(values)} {below}"


F = TypeVar("F", bound=_Family)


class Metrics:
    """The numbers of one process, or of one part of it.

    >>> metrics = Metrics()
    >>> metrics.counter("casque_calls_total", "Calls.", ("verb",)).of("ack").add()
    >>> print(metrics.text(), end="")
    # HELP casque_calls_total Calls.
    # TYPE casque_calls_total counter
    casque_calls_total{verb="ack"} 1
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
        return self._family(Counter, name, about, labels)

    def gauge(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return self._family(Gauge, name, about, labels)

    def histogram(
        self, name: str, about: str, labels: tuple[str, ...] = (), *, bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        return self._family(Histogram, name, about, labels, bounds=bounds)

    def text(self, shows: Shows | None = None) -> str:
        """All families in Prometheus' text format; with `shows` only the numbers that it accepts."""
        lines = [line for family in self._families.values() for line in family.lines(shows)]
        return "".join(f"{line}\n" for line in lines)

    def _family(self, kind: type[F], name: str, about: str, labels: tuple[str, ...], **options: Any) -> F:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(name, about, labels, **options)
        assert isinstance(family, kind), f"{name} is a {family.kind}"
        return family


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(printable_lines(text)).replace('"', '\\"')
