"""Writes the pages that follow from other files: `python.md`, `coverage.md`, the list of commands in `cli.md`, and the
index of decisions.

.venv/bin/python scripts/reference.py            writes the pages anew (`make reference`)
.venv/bin/python scripts/reference.py --check    writes nothing, and names those that are not current
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import casque

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the table of coverage is made from the tests

from scripts.public_names import NOT_MADE, PARTS  # noqa: E402
from tests.simulation import coverage  # noqa: E402

DOCS = ROOT / "docs" / "reference"
DECISIONS = ROOT / "docs" / "decisions"

LIKE = {"SyncQueue": "Queue", "SyncJob": "Job", "SyncHandle": "Handle"}
"""What blocks is told where it does not."""

HEAD = """# Python

Every public class and function, as the code documents it: `make reference` writes this page, and its examples are
run as tests. The [how-tos](../README.md#how-to) show how to use them together. [Errors](errors.md) and
[settings](settings.md) have pages of their own.
"""

DECISIONS_HEAD = """# Decisions

One page per decision that a newcomer would otherwise wonder about: what was decided, why, and what it costs.

A new decision gets the next number and the status *accepted*. A decision that no longer holds stays, *superseded by*
another one; if only a part has changed, it is *amended by* another one. `make reference` writes this list from the
pages. Missing numbers are not in use.
"""


def main() -> int:
    stale = [page for page, text in pages().items() if page.read_text() != text]
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is not what the code says: run `.venv/bin/python scripts/reference.py`")
        return len(stale)
    for page in stale:
        page.write_text(pages()[page])
        print("wrote", page.relative_to(ROOT))
    return 0


def pages() -> dict[Path, str]:
    cli = DOCS / "cli.md"
    before, begin, rest = cli.read_text().partition("<!-- commands: made by `make reference` -->\n")
    _, end, after = rest.partition("<!-- end of commands -->\n")
    assert end, "cli.md has lost the marks around its list of commands"
    return {
        DOCS / "python.md": python_page(),
        DOCS / "coverage.md": coverage.page(),
        cli: before + begin + command_list() + end + after,
        DECISIONS / "README.md": decision_index(),
    }


# --- Decisions ---


def decision_index() -> str:
    rows = "".join(f"| {number} | [{title}]({name}) | {status} |\n" for number, title, name, status in decisions())
    return f"{DECISIONS_HEAD}\n| | decision | status |\n|---|---|---|\n{rows}"


def decisions() -> Iterator[tuple[int, str, str, str]]:
    for path in sorted(DECISIONS.glob("0*.md")):
        found = re.match(r"# (\d+)\. (.+)\n\n\*\*Status\*\*: (.+)\.\n", path.read_text())
        assert found, f"{path.name}: begin with `# NUMBER. TITLE`, an empty line, and `**Status**: accepted.`"
        yield int(found[1]), found[2], path.name, found[3]


# --- Commands ---


def command_list() -> str:
    import typer.main

    from casque.cli.main import app

    rows = "".join(f"| [`{name}`](#{anchor}) | {text} |\n" for name, anchor, text in sorted(_commands(app, typer)))
    return f"| command | |\n|---|---|\n{rows}"


def _commands(app: Any, typer: Any) -> Iterator[tuple[str, str, str]]:
    headings = [line[3:] for line in (DOCS / "cli.md").read_text().splitlines() if line.startswith("## `casque")]

    def walk(name: str, command: Any) -> Iterator[tuple[str, str, str]]:
        for sub, found in getattr(command, "commands", {}).items():
            whole = f"{name} {sub}"
            if hasattr(found, "commands") and found.commands:
                yield from walk(whole, found)
                continue
            if found.hidden:
                continue
            heading = next((one for one in headings if re.search(rf"`{whole}[ `]", one)), None)
            if heading is not None:
                yield whole, _anchor(heading), _first_sentence(found.help or "")

    yield from walk("casque", typer.main.get_command(app))


def _anchor(heading: str) -> str:
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_ -")
    return kept.replace(" ", "-")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".:") + "."


# --- Classes and functions ---


class Member(NamedTuple):
    title: str
    text: str


def python_page() -> str:
    page = [HEAD]
    for part, names in PARTS.items():
        page.append(f"## {part}\n")
        for name in names:
            module, _, short = name.rpartition(".")
            page.append(described(name, getattr(import_module(module), short)))
    return "\n".join(page)


def described(name: str, thing: Any) -> str:
    lines = [f"### `{name}`\n"]
    if inspect.isclass(thing):
        if not issubclass(thing, Enum) and thing.__name__ not in NOT_MADE:
            lines.append(f"```text\n{_signature(thing, thing.__name__)}\n```\n")
    else:
        lines.append(f"```text\n{_signature(thing, thing.__name__)}\n```\n")
    if text := inspect.getdoc(thing):
        lines.append(_as_markdown(text))
    if inspect.isclass(thing) and (members := list(_members(thing))):
        lines.append("| member | |\n|---|---|")
        lines.extend(f"| {one.title} | {one.text} |" for one in members)
        lines.append("")
    return "\n".join(lines)


def _members(kind: type) -> Iterator[Member]:
    given = inspect.signature(kind).parameters if kind.__name__ not in NOT_MADE else {}
    other = LIKE.get(kind.__name__, "")
    for name, (node, own) in _statements(kind).items():
        text = own or (f"As `{other}.{name}`." if hasattr(getattr(casque, other, None), name) else "")
        if name.startswith("_") or text.startswith("For "):
            continue
        if issubclass(kind, Enum) and isinstance(node, ast.Assign):
            yield Member(f"`{name}`", " ".join(filter(None, [f"`{kind[name].value}`.", text])))
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            function = getattr(kind, name)
            how = "await " if inspect.iscoroutinefunction(function) else ""
            how = "async for ... in " if inspect.isasyncgenfunction(function) else how
            yield Member(f"`{how}{_call(name, function)}`", text)
        elif text or name not in given:
            yield Member(f"`{name}`", text)


def _statements(kind: type) -> dict[str, tuple[ast.stmt, str]]:
    """What a class has, in its own order and then what it inherits, with the text that stands with it."""
    found: dict[str, tuple[ast.stmt, str]] = {}
    for owner in _classes(kind):
        own: dict[str, tuple[ast.stmt, str]] = {}
        for node, following in pairwise([*owner.body, ast.Pass()]):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name == "__init__":
                    own.update(_attributes(node))
                own[node.name] = node, _cell(ast.get_docstring(node) or own.get(node.name, (None, ""))[1])
            elif isinstance(target := _target(node), ast.Name):
                own[target.id] = node, _text(following)
        found.update({name: one for name, one in own.items() if name not in found})
    return found


def _classes(kind: type) -> list[ast.ClassDef]:
    found = []
    for owner in kind.__mro__:
        if owner.__module__.startswith("casque"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
            assert isinstance(tree, ast.ClassDef)
            found.append(tree)
    return found


def _target(node: ast.stmt) -> ast.expr | None:
    match node:
        case ast.AnnAssign():
            return node.target
        case ast.Assign():
            return node.targets[0]
    return None


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, tuple[ast.stmt, str]]]:
    for node, following in pairwise([*init.body, ast.Pass()]):
        target = _target(node)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr, (node, _text(following))


def _text(node: ast.stmt) -> str:
    """The text after an attribute."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _cell(inspect.cleandoc(node.value.value))
    return ""


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id.endswith("property") for one in node.decorator_list)


def _cell(text: str) -> str:
    """A docstring as one cell of a table: without its examples, which are for the class."""
    kept = [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if ">>>" not in paragraph]
    return " ".join(kept).replace("|", "\\|").replace("Raises: ", "Raises ")


def _as_markdown(text: str) -> str:
    """A docstring, its examples as blocks."""
    text = re.sub(r"^Raises:\n    ", "Raises ", text, flags=re.MULTILINE)
    made: list[str] = []
    inside = False
    for line in text.splitlines():
        example = line.startswith((">>>", "...")) or (inside and line.strip())
        if example and not inside:
            made.append("```pycon")
        if inside and not example:
            made.append("```")
        inside = bool(example)
        made.append(line)
    if inside:
        made.append("```")
    return "\n".join(made) + "\n"


def _signature(thing: Any, name: str) -> str:
    try:
        whole = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    given = [one for one in whole.parameters.values() if not one.name.startswith("_")]
    if not given:
        return f"{name}()"
    lines, keyword_only, kinds = [], False, _written_kinds(thing)
    for one in given:
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        keyword_only = keyword_only or stars == "*"
        written = kinds.get(one.name, one.annotation)
        kind = f": {written}" if isinstance(written, str) else ""
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        lines.append(f"    {stars}{one.name}{kind}{default},")
    return "\n".join([f"{name}(", *lines, ")"])


def _call(name: str, thing: Any) -> str:
    """One line: names and defaults."""
    shown, keyword_only = [], False
    for one in inspect.signature(thing).parameters.values():
        if one.name in ("self", "cls"):
            continue
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
        keyword_only = keyword_only or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        default = "" if one.default is one.empty else f"={_default(one.default)}"
        shown.append(f"{stars}{one.name}{default}")
    return f"{name}({', '.join(shown)})"


def _written_kinds(thing: Any) -> dict[str, str]:
    """Types as the code has them: what Python makes of them differs between its releases."""
    if not inspect.isclass(thing):
        return {}
    nodes = [node for tree in _classes(thing) for node in tree.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: ast.unparse(node.annotation) for node in nodes if isinstance(node.target, ast.Name)}


def _default(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__) if " at 0x" in repr(value) else repr(value)


if __name__ == "__main__":
    sys.exit(main())
