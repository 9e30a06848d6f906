"""Finds words that make prose read like a translation: in the texts of src/casque (comments, docstrings and what users
see), in README.md, in docs, and in the titles of decisions.

.venv/bin/python scripts/words.py          names every place, and fails if there is one (`make lint`)
.venv/bin/python scripts/words.py --list   names every place
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/*.md",
    "docs/how-to/*.md",
    "docs/reference/*.md",
    "docs/explanation/*.md",
    "docs/decisions/README.md",
)
WORDS = r"\b(?i:whoever|somebody|nobody|told|so many|so long|lest|thereby|in vain)\b"
OPENING = r"(?:^\W*f?\W*|[.;:?!|]\s+)Of\b(?! course)"
"""A sentence, a line of a text, or a cell of a table that begins with "Of"."""
AVOIDED = re.compile(f"{WORDS}|{OPENING}", re.MULTILINE)
IN_PAGES = r"\b(?i:anybody|everybody|someone|tells|at it|(?:is|are|was|were) over|work(?:s|ed|ing)? off)\b"
"""Words that pages avoid as well."""
AVOIDED_IN_PAGES = re.compile(f"{WORDS}|{OPENING}|{IN_PAGES}", re.MULTILINE)
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


LINK = re.compile(r"\]\([^)\s]*\)")


def places() -> Iterator[str]:
    """File, line and word of each."""
    for path, start, text in texts():
        avoided = AVOIDED_IN_PAGES if path.suffix == ".md" else AVOIDED
        for found in avoided.finditer(text):
            line = start + text[: found.end()].count("\n")
            yield f"{path.relative_to(ROOT)}:{line}: {found.group().strip()}"


def texts() -> Iterator[tuple[Path, int, str]]:
    """Files, the lines at which texts in them begin, and the texts."""
    for path in sorted((ROOT / "src" / "casque").rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
                if token.type in TEXTS:
                    yield path, token.start[0], token.string
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield path, 1, LINK.sub("]", path.read_text())


def main() -> int:
    found = list(places())
    for place in found:
        print(place)
    return 1 if found and "--list" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
