"""Keeps words out of the code that make its prose read like a translation: they are counted in comments and texts.

.venv/bin/python scripts/words.py          fails if a package has more of them than it is allowed
.venv/bin/python scripts/words.py --list   names every place

What a package is allowed may only become less. The texts that users see are part of it.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "casque"
AVOIDED = re.compile(
    r"\b(whoever|somebody|nobody|told|so many|so long|lest|thereby|in vain)\b|^\W*Of (?!course)", re.IGNORECASE
)
ALLOWED: dict[str, int] = {
    "casque": 8,
    "cli": 18,
    "client": 3,
    "codec": 1,
    "engine": 1,
    "functions": 1,
    "journal": 3,
    "spark": 37,
    "storage": 3,
    "testing": 17,
    "transport": 8,
}
"""Mostly texts that users see, and tests and pages quote."""


def places() -> Iterator[tuple[str, Path, int, str]]:
    """Package, file, line and word of each."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        inside = path.relative_to(SOURCE).parts
        package = inside[0] if len(inside) > 1 else "casque"
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for found in AVOIDED.finditer(token.string):
                    line = token.start[0] + token.string[: found.start()].count("\n")
                    yield package, path, line, found.group().strip()


def main() -> int:
    found = list(places())
    if "--list" in sys.argv[1:]:
        for _, path, line, word in found:
            print(f"{path.relative_to(ROOT)}:{line}: {word}")
        return 0
    counts = Counter(package for package, *_ in found)
    more = {name: count for name, count in counts.items() if count > ALLOWED.get(name, 0)}
    for name, count in sorted(more.items()):
        print(f"{name}: {count} avoided words, {ALLOWED.get(name, 0)} allowed; `scripts/words.py --list` names them")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
