"""Finds words in src/casque that make prose read like a translation: in comments, docstrings and texts users see.

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
WORDS = r"\b(?i:whoever|somebody|nobody|told|so many|so long|lest|thereby|in vain)\b"
OPENING = r"(?:^\W*f?\W*|[.;:?!]\s+)Of\b(?! course)"
"""A sentence, or a line of a text, that begins with "Of"."""
AVOIDED = re.compile(f"{WORDS}|{OPENING}", re.MULTILINE)
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def places() -> Iterator[str]:
    """File, line and word of each."""
    for path in sorted((ROOT / "src" / "casque").rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in TEXTS:
                for found in AVOIDED.finditer(token.string):
                    line = token.start[0] + token.string[: found.end()].count("\n")
                    yield f"{path.relative_to(ROOT)}:{line}: {found.group().strip()}"


def main() -> int:
    found = list(places())
    for place in found:
        print(place)
    return 1 if found and "--list" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
