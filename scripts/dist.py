"""Write the files of a release into dist/: wheel, source archive, their hashes, a list of parts and the notes.

`make dist` builds them from any checkout. With TAG=v1.2.3 in the environment, as in the release workflow, the tag must
match the version and the changelog must date the release.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.sbom import write_sbom  # noqa: E402

DIST = ROOT / "dist"


def main() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, os.environ.get("TAG", ""))

    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": last_commit_s()}, check=True)

    write_sbom(DIST / "casque.cdx.json")
    (DIST / "NOTES.md").write_text(notes, encoding="utf-8")
    packages = sorted([*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")])
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in packages]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")


def release_notes(changelog: str, version: str, tag: str) -> str:
    """Return the changelog's section for this version; without a tag, what is unreleased will do."""
    if tag and tag != f"v{version}":
        sys.exit(f"the tag is {tag}, but pyproject.toml says {version}: tag v{version}, or change the version")
    for heading in (rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", *([] if tag else [r"\[Unreleased\]"])):
        if found := re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL):
            return found[1].strip() + "\n"
    sys.exit(f'CHANGELOG.md has no section "## [{version}] - YYYY-MM-DD": rename "## [Unreleased]" to it')


def last_commit_s() -> str:
    """Return the time of the last commit: files in the archives carry it, so a rebuild gives the same bytes."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return shown.stdout.strip()


if __name__ == "__main__":
    main()
