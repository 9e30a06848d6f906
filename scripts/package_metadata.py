"""Hatchling metadata hook: the README and the URLs as a package index shows them.

README.md links to files beside it, which a package index does not have. `[tool.casque] repository` in pyproject.toml
says where they are published: links and pictures become absolute, and the project gets its URLs. While it is empty,
links become plain text and pictures are left out, so that no page has a dead link.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)\n*")
LINK = re.compile(r"\[((?:[^\[\]]|`[^`]*`)+)\]\((?!https?:|#)([^)\s]+)\)")


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        repository = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["casque"]["repository"].rstrip("/")
        text = readme_for_index((root / "README.md").read_text(), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = project_urls(repository)


def readme_for_index(readme: str, repository: str) -> str:
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    pictures = PICTURE.sub(rf"![\1]({repository}/raw/HEAD/\2)\n\n", readme)
    return LINK.sub(rf"[\1]({repository}/blob/HEAD/\2)", pictures)


def project_urls(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/HEAD/docs/README.md",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
