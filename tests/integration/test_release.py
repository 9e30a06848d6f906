"""The files of a release: notes, and the bill of materials."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = """# Changes

## 1.1.0 (unreleased)

- Faster.

## 1.0.0 (2026-12-31)

### Added

- Everything.
"""


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist_script", ROOT / "scripts" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bill(dist: ModuleType) -> dict[str, Any]:
    hashes = dist.locked_hashes((ROOT / "requirements" / "dev.lock").read_text())
    made: dict[str, Any] = dist.bill_of_materials("casque", {"server", "spark", "iceberg"}, hashes)
    return made


def test_the_notes_are_the_section_of_the_version(dist: ModuleType) -> None:
    assert dist.release_notes(CHANGES, "1.0.0", "v1.0.0") == "### Added\n\n- Everything.\n"
    assert dist.release_notes(CHANGES, "1.1.0", "") == "- Faster.\n"


@pytest.mark.parametrize(
    ("version", "tag", "why"),
    [
        ("1.1.0", "v1.1.0", 'CHANGELOG.md has no date for 1.1.0: write "## 1.1.0 (YYYY-MM-DD)"'),
        (
            "1.0.0",
            "v1.0.1",
            "the tag is v1.0.1, but pyproject.toml says 1.0.0: tag v1.0.0, or change the version",
        ),
        ("2.0.0", "", 'CHANGELOG.md has no section "## 2.0.0 (...)": write one'),
    ],
)
def test_what_is_not_ready_is_not_released(dist: ModuleType, version: str, tag: str, why: str) -> None:
    with pytest.raises(SystemExit) as refused:
        dist.release_notes(CHANGES, version, tag)
    assert refused.value.code == why


def test_the_bill_lists_each_dependency_once_with_its_hashes(bill: dict[str, Any]) -> None:
    names = [component["name"] for component in bill["components"]]

    assert len(names) == len(set(names))
    assert {"msgspec", "obstore", "grpcio", "pyspark", "pyiceberg"} <= set(names)
    assert not {"casque", "pytest", "mypy", "ruff", "hatchling"} & set(names)
    for component in bill["components"]:
        assert component["purl"] == f"pkg:pypi/{canonical(component['name'])}@{component['version']}"
        assert component["hashes"], component["name"]
        assert all(len(one["content"]) == 64 for one in component["hashes"])


def test_the_bill_says_what_needs_what(bill: dict[str, Any]) -> None:
    refs = {component["bom-ref"] for component in [*bill["components"], bill["metadata"]["component"]]}
    needs = {entry["ref"]: set(entry["dependsOn"]) for entry in bill["dependencies"]}

    assert needs.keys() == refs
    assert set().union(*needs.values()) == refs - {bill["metadata"]["component"]["bom-ref"]}  # all are needed, by some
    [spark] = [ref for ref in refs if ref.startswith("pkg:pypi/pyspark@")]
    assert any(ref.startswith("pkg:pypi/py4j@") for ref in needs[spark])


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
