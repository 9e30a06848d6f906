"""A strict reader of the Prometheus text format: what a scrape would make of a page."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


class Scrape(NamedTuple):
    kinds: dict[str, str]
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]
    text: str

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name}


def scrape(text: str) -> Scrape:
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    helped = family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert NAME.fullmatch(helped)
            assert line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            family, kind = line.split(" ")[2:]
            assert family == helped
            assert family not in kinds
            kinds[family] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            assert name in {family + suffix for suffix in SUFFIXES[kinds[family]]}, line
            pairs = LABEL.findall(labels or "")
            assert "".join(f'{key}="{text}",' for key, text in pairs).removesuffix(",") == (labels or "")
            key = (name, frozenset(pairs))
            assert key not in samples, line
            samples[key] = float(value)
    return Scrape(kinds, samples, text)
