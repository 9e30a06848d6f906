"""Files that a release is made of: the changelog, the security policy, the list of parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.deploy_tools import fetched

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    first, *_ = CHANGELOG.splitlines()
    assert first == "# Changelog"
    unreleased, *releases = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert unreleased == "[Unreleased]"
    versions = []
    for release in releases:
        found = re.fullmatch(r"\[([^\]]+)\] - (\d{4}-\d{2}-\d{2})( \[YANKED\])?", release)
        assert found, release
        assert SEMVER.fullmatch(found[1]), release
        date.fromisoformat(found[2])
        versions.append(tuple(int(part) for part in re.split(r"[-+]", found[1])[0].split(".")))
    assert versions == sorted(versions, reverse=True), "the latest comes first"


def test_changes_are_grouped_by_kind() -> None:
    for section in re.split(r"^## .+$", CHANGELOG, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert set(kinds) <= set(KINDS)
        assert len(kinds) == len(set(kinds)), "each kind once"
        for lines in re.split(r"^### .+$", section, flags=re.MULTILINE)[1:]:
            assert all(line.startswith(("- ", "  ")) for line in lines.splitlines() if line), "a list of changes"


def test_the_version_is_semantic() -> None:
    assert SEMVER.fullmatch(PROJECT["version"])


def test_the_security_policy_says_how_to_report_and_what_is_supported() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    for heading in ("## Report a vulnerability", "## Supported versions"):
        assert heading in policy


@pytest.mark.parametrize("page", ["SECURITY.md", "deploy/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert links
    for link in links:
        assert (ROOT / page).parent.joinpath(link).exists(), link


def load(script: str) -> ModuleType:
    """A module of `scripts/`, whose modules import each other by their plain names."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return import_module(script)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
print("" if error is None else error.data.message, end="")
"""


@pytest.mark.parametrize("extras", [set(), {"server"}], ids=["all", "server"])
def test_the_list_of_parts_names_what_casque_needs_in_the_versions_of_the_lock(
    tmp_path: Path, extras: set[str]
) -> None:
    listed = json.loads(load("sbom").write_sbom(tmp_path / "casque.cdx.json", extras).read_text())
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "casque")
    assert listed["metadata"]["component"]["version"] == PROJECT["version"]
    parts = {part["name"].lower().replace("_", "-"): part for part in listed["components"]}
    lock = set(re.findall(r"^([\w.-]+)==([\w.+!]+)", (ROOT / "requirements" / "dev.lock").read_text(), re.MULTILINE))
    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(one for extra in extras or optional for one in optional[extra])]
    for name in {re.split(r"[\[<>=;]", one)[0].lower() for one in wanted} - {"casque"}:
        assert (name, parts[name]["version"]) in lock
        assert parts[name]["hashes"]
    assert not {"casque", "pip", "pytest", "setuptools"} & parts.keys()
    assert ("pyspark" in parts) == (not extras)
    command = [fetched("python"), "-c", VALIDATE]
    checked = subprocess.run(command, input=json.dumps(listed), capture_output=True, text=True, check=True)
    assert checked.stdout == ""


def test_an_extra_that_casque_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"casque has no extra sevrer; there are .*server"):
        load("sbom").write_sbom(tmp_path / "casque.cdx.json", {"sevrer"})
    assert list(tmp_path.iterdir()) == []


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    notes = load("dist").release_notes
    before = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Ice.\n"
    after = before.replace("[Unreleased]", "[1.2.3] - 2026-12-31") + "\n## [1.2.2] - 2026-11-30\n\n- Water.\n"

    assert notes(before, "1.2.3", "") == notes(after, "1.2.3", "v1.2.3") == "### Added\n\n- Ice.\n"
    assert notes(CHANGELOG, PROJECT["version"], "").startswith("### Added")
    with pytest.raises(SystemExit, match=r'rename "## \[Unreleased\]" to it'):
        notes(before, "1.2.3", "v1.2.3")
    with pytest.raises(SystemExit, match=r"the tag is v1.2.4, but pyproject.toml says 1.2.3"):
        notes(after, "1.2.3", "v1.2.4")
