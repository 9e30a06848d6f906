"""The documentation as a site: its navigation, its links and the form of its pages.

`make docs` builds it strictly, with an environment of its own. These tests need none of that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scripts import site_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
GROUPS = ["Start", "Produce", "Work", "Operate", "Tenants", "Spark", "Integrate"]


def navigation() -> list[Any]:
    return site_pages.navigation((DOCS / "README.md").read_text())


def targets(entry: Any) -> list[str]:
    """The pages of an entry of the navigation, and of what is below it."""
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [target for one in inside for target in targets(one)]


def test_every_page_is_in_the_navigation() -> None:
    named = set(targets(navigation()))
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).as_posix()
        assert page in named, f"list {page} in docs/README.md, under the heading it belongs to"


def test_the_navigation_names_each_page_once_and_none_that_is_not_there() -> None:
    named = targets(navigation())
    generated = {*site_pages.api_pages(), *site_pages.project_pages()}
    assert len(named) == len(set(named))
    assert [page for page in named if not (DOCS / page).exists() and page not in generated] == []


def test_how_tos_are_in_groups() -> None:
    [how_to] = [entry["How to"] for entry in navigation() if "How to" in entry]
    assert [next(iter(group)) for group in how_to] == GROUPS


@pytest.mark.parametrize("path", HOW_TO, ids=[path.stem for path in HOW_TO])
def test_a_how_to_starts_with_the_command_or_code(path: Path) -> None:
    title, _, rest = path.read_text().partition("\n\n")
    assert re.fullmatch(r"# .+", title)
    assert rest.startswith(("```", "    ")), f"{path.name}: show the command or code first, then explain it"


def test_a_link_out_of_the_docs_leads_to_a_page_of_the_site() -> None:
    text = "See [a program](../../examples/worker.py), [another page](choose-a-store.md) and [a site](https://example.com/)."
    assert site_pages.rewrite_links(text, "how-to/run-workers.md") == (
        "See [a program](../project/examples/worker.py.md), [another page](choose-a-store.md)"
        " and [a site](https://example.com/)."
    )
    assert "project/examples/worker.py.md" in site_pages.project_pages()


def test_a_link_into_the_docs_from_outside_leads_to_the_same_page() -> None:
    text = "[an adapter](docs/how-to/write-a-store-adapter.md#two-methods-one-object)"
    rewritten = site_pages.rewrite_links(text, "project/CONTRIBUTING.md")
    assert rewritten == "[an adapter](../how-to/write-a-store-adapter.md#two-methods-one-object)"


def test_a_block_with_a_file_name_gets_it_as_a_title() -> None:
    assert site_pages.NAMED_FENCE.sub(r'```\1 title="\2"', "```python shop.py\n```") == '```python title="shop.py"\n```'


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.com/x.js"></script>',
        '<link rel="stylesheet" href="https://example.com/x.css">',
        "@font-face { src: url(//example.com/x.woff2) }",
        '<img src="http://example.com/x.png">',
    ],
)
def test_what_is_loaded_from_another_host_is_found(page: str) -> None:
    assert site_pages.REMOTE.search(page)


def test_a_link_for_readers_is_not_taken_for_something_that_is_loaded() -> None:
    assert not site_pages.REMOTE.search(
        '<a href="https://example.com/">a site</a> <link rel="icon" href="images/icon.svg">'
    )


def test_pictures_load_nothing_from_other_hosts() -> None:
    for picture in (DOCS / "images").glob("*.svg"):
        assert not site_pages.REMOTE.search(picture.read_text()), picture.name


def test_the_figures_for_sizing_are_those_of_the_benchmarks() -> None:
    page = (DOCS / "how-to" / "size-a-queue.md").read_text()
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text()
    ring = page.partition("times one shard")[2].partition("##")[0]
    rings = re.findall(r"^\| (\d) \| ([\d,]+) \| ([\d.]+) \|$", ring, re.MULTILINE)
    assert len(rings) == 4
    for shards, rate, times in rings:
        assert re.search(rf"^\| +{shards} \| +{rate} \| {times} ", benchmarks, re.MULTILINE), shards
    for figure in ("1,663", "1,732", "690", "913"):
        assert re.search(rf"(?<!\d){figure}(?!\d)", page), figure
        assert re.search(rf"(?<![\d,]){figure}(?!,?\d)", benchmarks), figure


def test_every_decision_has_a_status_and_names_its_successor() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        status = path.read_text().split("\n\n")[1]
        assert re.fullmatch(r"\*\*Status\*\*: (accepted|(accepted, amended|superseded) by \[.+)\.", status), path.name
        assert f"]({path.name}) |" in index, f"{path.name}: run `make reference`"
