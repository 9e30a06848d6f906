"""Files that a release is made of: the changelog and the security policy."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

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
