"""What is not simulated is not promised: every promise has a proof for every way to run a queue, or a named gap."""

from __future__ import annotations

import re
from pathlib import Path

from simulation.world import Invariant
from tests.simulation.coverage import GAPS, GUARANTEES, OUTSIDE, page, table

DOCS = Path(__file__).parents[2] / "docs"


def test_every_promise_in_the_docs_is_a_row() -> None:
    text = (DOCS / "explanation" / "guarantees.md").read_text()
    headings = set(re.findall(r"^## (.+)$", text, flags=re.MULTILINE))
    assert {guarantee.heading for guarantee in GUARANTEES} | set(OUTSIDE) == headings


def test_every_empty_cell_is_named_and_no_other() -> None:
    empty = {place for place, cell in table().items() if cell.is_empty}
    assert empty == set(GAPS)


def test_every_invariant_belongs_to_a_promise() -> None:
    assert {invariant for guarantee in GUARANTEES for invariant in guarantee.invariants} | {Invariant.CAUSED} == set(
        Invariant
    )


def test_the_page_is_current() -> None:
    assert (DOCS / "reference" / "coverage.md").read_text() == page(), "run `make reference`"
