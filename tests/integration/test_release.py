"""The files of a release: notes, and the list of parts."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.dist import release_notes
from scripts.sbom import write_sbom
from tests.support.deploy_tools import fetched

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = set(re.findall(r"^([\w.-]+)==([\w.+!]+)", (ROOT / "requirements" / "dev.lock").read_text(), re.MULTILINE))
CHANGES = """# Changelog

## [Unreleased]

- Faster.

## [1.0.0] - 2026-12-31

### Added

- Everything.
"""
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
print("" if error is None else error.data.message, end="")
"""


def listed(place: Path, *extras: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(write_sbom(place / "casque.cdx.json", extras).read_text())
    return found


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release_notes(CHANGES, "1.0.0", "v1.0.0") == "### Added\n\n- Everything.\n"
    assert release_notes(CHANGES, "1.1.0", "") == "- Faster.\n"
    assert release_notes((ROOT / "CHANGELOG.md").read_text(), PROJECT["version"], "").startswith("### Added")


@pytest.mark.parametrize(
    ("version", "tag", "why"),
    [
        (
            "1.1.0",
            "v1.1.0",
            'CHANGELOG.md has no section "## [1.1.0] - YYYY-MM-DD": rename "## [Unreleased]" to it',
        ),
        (
            "1.0.0",
            "v1.0.1",
            "the tag is v1.0.1, but pyproject.toml says 1.0.0: tag v1.0.0, or change the version",
        ),
    ],
)
def test_what_is_not_ready_is_not_released(version: str, tag: str, why: str) -> None:
    with pytest.raises(SystemExit) as refused:
        release_notes(CHANGES, version, tag)
    assert refused.value.code == why


@pytest.mark.parametrize("extras", [(), ("server",)], ids=["all", "server"])
def test_the_list_has_each_dependency_once_in_the_version_and_with_the_hashes_of_the_lock(
    tmp_path: Path, extras: tuple[str, ...]
) -> None:
    parts = {canonical(part["name"]): part for part in listed(tmp_path, *extras)["components"]}

    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(one for extra in extras or optional for one in optional[extra])]
    assert {canonical(re.split(r"[\[<>=;]", one)[0]) for one in wanted} - {"casque"} <= parts.keys()
    assert not {"casque", "pip", "pytest", "mypy", "hatchling", "setuptools"} & parts.keys()
    assert ("pyspark" in parts) == (not extras)
    assert len(parts) == len(json.loads((tmp_path / "casque.cdx.json").read_text())["components"])
    for name, part in parts.items():
        assert (name, part["version"]) in LOCK
        assert part["purl"] == f"pkg:pypi/{name}@{part['version']}"
        assert part["hashes"], name
        assert all(len(one["content"]) == 64 for one in part["hashes"])


def test_the_list_says_what_needs_what(tmp_path: Path) -> None:
    bill = listed(tmp_path)
    casque = bill["metadata"]["component"]
    refs = {component["bom-ref"] for component in [*bill["components"], casque]}
    needs = {entry["ref"]: set(entry["dependsOn"]) for entry in bill["dependencies"]}

    assert (casque["name"], casque["version"]) == ("casque", PROJECT["version"])
    assert needs.keys() == refs
    assert set().union(*needs.values()) == refs - {casque["bom-ref"]}  # all are needed, by some
    [spark] = [ref for ref in refs if ref.startswith("pkg:pypi/pyspark@")]
    assert any(ref.startswith("pkg:pypi/py4j@") for ref in needs[spark])


def test_the_list_is_cyclonedx(tmp_path: Path) -> None:
    text = json.dumps(listed(tmp_path))
    command = [fetched("python"), "-c", VALIDATE]
    wrong = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    assert wrong == ""
    broken = text.replace('"bomFormat"', '"bomFromat"')
    assert subprocess.run(command, input=broken, capture_output=True, text=True, check=True).stdout


def test_an_extra_that_casque_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"casque has no extra sevrer; there are .*server"):
        write_sbom(tmp_path / "casque.cdx.json", {"sevrer"})
    assert list(tmp_path.iterdir()) == []


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
