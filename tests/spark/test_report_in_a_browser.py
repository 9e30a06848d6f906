"""The page in a real browser: it loads, complains about nothing, fetches nothing, and everything on it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casque.spark.report import Report
from casque.spark.report.headline import compare, headlines
from casque.spark.report.page import Origin
from casque.spark.report.page import page as page_of
from casque.spark.report.period import HOUR_MS, Period
from simulation.known_history import HOSTILE
from tests.spark.browser import Browser, browsing, find_browser
from tests.spark.known_answers import Made

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium on the PATH: `make browser` installs one"),
]

MISPLACED = """
[...document.querySelectorAll('svg.chart')].flatMap(svg => {
  const all = svg.getBoundingClientRect(), wrong = [];
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([one, a], n) => {
    if (a.left < all.left - 1 || a.right > all.right + 1 || a.top < all.top - 1 || a.bottom > all.bottom + 1)
      wrong.push(`${svg.getAttribute('aria-label')}: ${one} is cut off`);
    boxes.slice(n + 1).forEach(([other, b]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        wrong.push(`${svg.getAttribute('aria-label')}: ${one} lies on ${other}`);
    });
  });
  return wrong;
})
"""
CONTRAST = """
(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(n => { const c = n / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const of = (one, name) => light(getComputedStyle(document.querySelector(one))[name]);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const card = of('section', 'backgroundColor');
  return ['section', '.soft', 'summary', 'tbody th', 'table th'].map(one => ratio(of(one, 'color'), card));
})()
"""


@pytest.fixture(scope="module")
def page(whole_report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(whole_report.html(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with browsing(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_it_loads_without_a_complaint_and_fetches_nothing(browser: Browser, page: str) -> None:
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page]


def test_what_would_be_wrong_is_noticed(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('x')</script><img src='http://127.0.0.1:1/x.png'>")
    browser.open(bad.as_uri())
    assert browser.complaints()
    assert len(browser.requests()) == 2


def test_the_figures_are_there_to_be_read(browser: Browser, page: str, whole_report: Report) -> None:
    browser.open(page)
    text = browser.evaluate("document.body.innerText")
    for one in headlines(whole_report.figures):
        assert f"{one.name}\n{one}" in text
    assert HOSTILE in text
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.evaluate("document.querySelectorAll('svg.chart').length") == 11


@pytest.mark.parametrize("width", [380, 760, 1600])
def test_nothing_is_cut_off_or_lies_on_something_else(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width)
    assert browser.evaluate(MISPLACED) == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page itself never scrolls"


@pytest.mark.parametrize("width", [380, 1200])
def test_two_periods_fit_beside_or_below_each_other(
    browser: Browser, known_warehouse: Made, tmp_path: Path, width: int
) -> None:
    begin = known_warehouse.extent.from_ms
    after, before = (known_warehouse.answers(Period(at, at + 2 * HOUR_MS)) for at in (begin + 2 * HOUR_MS, begin))
    path = tmp_path / "compared.html"
    path.write_text(page_of(after, Origin("", 0, known_warehouse.extent), compare(before, after), before))
    browser.open(path.as_uri(), width=width)
    assert browser.evaluate(MISPLACED) == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tops = "[...document.querySelectorAll('.pair')].map(p => [...p.children].map(c => c.getBoundingClientRect().top))"
    assert [len(set(pair)) for pair in browser.evaluate(tops)] == [1 if width > 800 else 2] * 3


def test_on_paper_it_is_light_and_nothing_is_cut_off(browser: Browser, page: str) -> None:
    browser.open(page, width=718, dark=True, paper=True)
    assert browser.evaluate(MISPLACED) == []
    wide = "[...document.querySelectorAll('table, svg')].filter(one => one.getBoundingClientRect().right > innerWidth)"
    assert browser.evaluate(f"{wide}.length") == 0
    assert min(browser.evaluate(CONTRAST)) >= 4.5
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(browser: Browser, page: str, dark: bool) -> None:
    browser.open(page, dark=dark)
    assert min(browser.evaluate(CONTRAST)) >= 4.5
