"""Write the list of parts of a release (SBOM): casque and everything that it needs at run time.

`make sbom` writes dist/casque.cdx.json with all extras of casque, `make sbom EXTRAS=server,parquet` with these two.
`make dist` writes the same list. It is CycloneDX 1.6: the packages of this environment, in the versions that the tests
ran with, and the hashes that `requirements/dev.lock` accepts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FILE = ROOT / "dist" / "casque.cdx.json"


def main() -> None:
    print(write_sbom(FILE, {one for argument in sys.argv[1:] for one in argument.split(",")}).relative_to(ROOT))


def write_sbom(file: Path, extras: Collection[str] = ()) -> Path:
    """Write the list of casque with these extras, or with all of them."""
    casque = distribution("casque")
    known = set(casque.metadata.get_all("Provides-Extra") or ())
    if unknown := set(extras) - known:
        sys.exit(f"casque has no extra {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    hashes = locked_hashes((ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8"))
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(sbom(casque, set(extras) or known, hashes), indent=2) + "\n", encoding="utf-8")
    return file


def sbom(casque: Distribution, extras: set[str], hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    packages = dict(walk(casque, extras))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(casque)},
        "components": [
            {**component(package), **locked(package, hashes)}
            for name, (package, _) in sorted(packages.items())
            if name != casque.name
        ],
        "dependencies": [
            {"ref": purl(package), "dependsOn": sorted(purl(packages[name][0]) for name in needs)}
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
    about: dict[str, Any] = {"bom-ref": purl(package), "type": "library"}
    about |= {"name": package.name, "version": package.version}
    if licences := package.metadata.get_all("License-Expression"):
        about["licenses"] = [{"expression": licences[0]}]
    return {**about, "purl": purl(package)}


def locked(package: Distribution, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    known = hashes.get((canonicalize_name(package.name), package.version))
    if known is None:
        sys.exit(f"{package.name} {package.version} is installed but not in requirements/dev.lock: run make setup")
    return {"hashes": [{"alg": "SHA-256", "content": one} for one in known]}


def purl(package: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(package.name)}@{package.version}"


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


if __name__ == "__main__":
    main()
