"""What users install: the wheel has casque and its `casque.testing`, and nothing that only developers need."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from casque import testing

ROOT = Path(__file__).parents[2]

FOR_USERS = {"clock", "contender", "functions", "gated", "hosting", "lossy", "service_suite", "store_suite"}
"""Modules of `casque.testing`. `contender` is a process that `StoreSuite` starts."""
SUITES = ("casque.testing.service_suite", "casque.testing.store_suite")
"""They are tests, and need pytest."""
FOR_DJANGO = "casque.integrations.django."
"""Modules that only a project with Django imports, after its settings. `test_django.py` is about them."""

IMPORT_ALL = """
import importlib, json, sys

wheel, hidden, modules, names = json.loads(sys.argv[1])
sys.path.insert(0, wheel)
sys.modules.update(dict.fromkeys(hidden))  # None: an import of it fails
for module in modules:
    found = importlib.import_module(module)
    assert found.__file__.startswith(wheel), found.__file__
testing = importlib.import_module("casque.testing")
for name in names:
    getattr(testing, name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network, and unpacked."""
    built = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [file] = built.glob("*.whl")
    unpacked = tmp_path_factory.mktemp("wheel")
    with ZipFile(file) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_the_wheel_has_no_more_than_the_packages_of_users(wheel: Path) -> None:
    [information] = wheel.glob("casque-*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"casque", "pyspark_casque", information.name}
    assert {path.stem for path in (wheel / "casque" / "testing").iterdir()} == FOR_USERS | {"__init__"}
    assert (wheel / "casque" / "py.typed").exists()


def test_the_page_on_an_index_has_no_link_to_a_file_beside_the_readme(wheel: Path) -> None:
    [information] = wheel.glob("casque-*.dist-info")
    _, _, page = (information / "METADATA").read_text().partition("\n\n")
    assert page.startswith("# casque")
    assert relative_links(page) == []
    assert "](" in (ROOT / "README.md").read_text()


def test_links_of_the_readme_lead_to_the_repository_once_it_is_named() -> None:
    module = runpy.run_path(str(ROOT / "scripts" / "package_metadata.py"))
    readme = (ROOT / "README.md").read_text()
    page = module["readme_for_index"](readme, "https://example.com/casque")
    assert "[tutorial](https://example.com/casque/blob/HEAD/docs/tutorial.md)" in page
    assert "](https://example.com/casque/raw/HEAD/docs/images/top.svg)" in page
    assert relative_links(page) == []
    assert module["project_urls"]("https://example.com/casque")["Changelog"].endswith("/blob/HEAD/CHANGELOG.md")
    assert module["project_urls"]("") == {}


def relative_links(page: str) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    return [target for target in targets if not target.startswith(("https://", "#"))]


def test_every_module_of_the_wheel_works_without_what_developers_have(wheel: Path) -> None:
    """No pytest, no simulator, no support for tests: `casque.testing` is for other test runners too. Nor frameworks."""
    hidden = ["pytest", "pytest_asyncio", "hypothesis", "moto", "trustme", "simulation", "tests", "benchmarks"]
    hidden += ["django", "django_tasks", "fastapi"]
    modules = [module for module in modules_of(wheel) if not module.startswith((*SUITES, FOR_DJANGO))]
    names = [name for name in testing.__all__ if name not in ("ServiceSuite", "StoreSuite")]
    assert len(modules) > 300

    assert import_all(wheel, hidden, modules, names) == ""


def test_the_suites_need_pytest_and_nothing_of_the_repository(wheel: Path) -> None:
    modules = [module for module in modules_of(wheel) if module.startswith(SUITES)]

    hidden = ["hypothesis", "simulation", "tests"]
    assert import_all(wheel, hidden, modules, ["ServiceSuite", "StoreSuite"]) == ""
    for suite in SUITES:
        assert "import of pytest halted" in import_all(wheel, ["pytest"], [suite], [])


def modules_of(wheel: Path) -> Iterator[str]:
    for path in sorted(wheel.rglob("*.py")):
        *packages, name = path.relative_to(wheel).with_suffix("").parts
        if name != "__main__":  # which runs when it is imported
            yield ".".join(packages if name == "__init__" else [*packages, name])


def import_all(wheel: Path, hidden: list[str], modules: list[str], names: list[str]) -> str:
    """In a process that sees neither the working directory nor PYTHONPATH. Returns what it prints of errors."""
    told = json.dumps([str(wheel), hidden, modules, names])
    command = [sys.executable, "-I", "-W", "error", "-c", IMPORT_ALL, told]
    return subprocess.run(command, cwd=wheel, capture_output=True, text=True).stderr
