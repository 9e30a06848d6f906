"""Write the files of a release into dist/: wheel, source archive, their hashes, a bill of materials and the notes.

`make dist` builds them from any checkout. With TAG=v1.2.3 in the environment, as in the release workflow, the tag must
match the version and the changelog must date the release.

The bill of materials (CycloneDX 1.6) lists the dependencies of casque and all its extras, in the versions that the
tests ran with, and the hashes that `requirements/dev.lock` accepts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, os.environ.get("TAG", ""))

    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": last_commit_s()}, check=True)

    lock = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    bill = bill_of_materials("casque", set(project["optional-dependencies"]), locked_hashes(lock))
    (DIST / "casque.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    (DIST / "NOTES.md").write_text(notes, encoding="utf-8")
    packages = sorted([*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")])
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in packages]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")


def release_notes(changelog: str, version: str, tag: str) -> str:
    """Return the changelog's section for this version. With a tag, it must be ready for release."""
    found = re.search(rf"^## {re.escape(version)} \(([^)\n]+)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f'CHANGELOG.md has no section "## {version} (...)": write one')
    if tag and tag != f"v{version}":
        sys.exit(f"the tag is {tag}, but pyproject.toml says {version}: tag v{version}, or change the version")
    if tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        sys.exit(f'CHANGELOG.md has no date for {version}: write "## {version} (YYYY-MM-DD)"')
    return found[2].strip() + "\n"


def last_commit_s() -> str:
    """Return the time of the last commit: files in the archives carry it, so a rebuild gives the same bytes."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return shown.stdout.strip()


def locked_hashes(lock: str) -> dict[tuple[str, str], list[str]]:
    """Return the hashes of a lock file by name and version."""
    hashes: dict[tuple[str, str], list[str]] = {}
    key = ("", "")
    for line in lock.splitlines():
        if found := re.match(r"([\w.-]+)==(\S+)", line):
            key = (canonicalize_name(found[1]), found[2])
        elif found := re.match(r"\s+--hash=sha256:(\w+)", line):
            hashes.setdefault(key, []).append(found[1])
    return hashes


def bill_of_materials(root: str, extras: set[str], hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    packages = dict(walk(distribution(root), extras))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(distribution(root)), "type": "library"}},
        "components": [
            {**component(package), "type": "library", **locked(package, hashes)}
            for name, (package, _) in sorted(packages.items())
            if name != root
        ],
        "dependencies": [
            {"ref": purl(package), "dependsOn": sorted(purl(packages[name][0]) for name in needs if name in packages)}
            for _, (package, needs) in sorted(packages.items())
        ],
    }


def walk(package: Distribution, extras: set[str]) -> Iterator[tuple[str, tuple[Distribution, set[str]]]]:
    """Yield a package and everything it needs here, each once, with the names of its direct dependencies."""
    todo = [(package, extras)]
    seen: dict[str, tuple[Distribution, set[str]]] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    while todo:
        package, extras = todo.pop()
        name = canonicalize_name(package.name)
        if (name, frozenset(extras)) in asked:
            continue
        asked.add((name, frozenset(extras)))
        _, needs = seen.setdefault(name, (package, set()))
        for requirement in map(Requirement, package.requires or []):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in {"", *extras}):
                try:
                    needed = distribution(requirement.name)
                except PackageNotFoundError:
                    sys.exit(f"{package.name} needs {requirement.name}, which is not installed here: run make setup")
                if canonicalize_name(needed.name) != name:
                    needs.add(canonicalize_name(needed.name))
                todo.append((needed, set(requirement.extras)))
    yield from seen.items()


def component(package: Distribution) -> dict[str, Any]:
    about: dict[str, Any] = {"bom-ref": purl(package), "name": package.name, "version": package.version}
    if licence := package.metadata.get("License-Expression"):
        about["licenses"] = [{"expression": licence}]
    return {**about, "purl": purl(package)}


def locked(package: Distribution, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    known = hashes.get((canonicalize_name(package.name), package.version))
    if known is None:
        sys.exit(f"{package.name} {package.version} is installed but not in requirements/dev.lock: run make setup")
    return {"hashes": [{"alg": "SHA-256", "content": one} for one in known]}


def purl(package: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(package.name)}@{package.version}"


if __name__ == "__main__":
    main()
