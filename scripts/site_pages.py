"""MkDocs hook: the pages of the site that are not in docs/, its navigation, and its links.

docs/ is written to be read on GitHub, so it links to files beside it (`../examples/worker.py`) and names files after
the language of a block (a fence `python shop.py`). This hook

- makes the navigation of the lists in docs/README.md;
- gives every linked file outside docs/ a page under project/, so that the site needs no repository to link to;
- replaces the page of docs/reference/python.md by pages that mkdocstrings renders from the code.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.public_names import PARTS  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
FENCES = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
NAMED_FENCE = re.compile(r"^```(\w+) ([^\s{=]+)$", re.MULTILINE)
BULLET = re.compile(r"- \[(.+?)\]\(([^)]+)\)")
REMOTE = re.compile(
    r"""(?:\bsrc=|<link(?![^>]*rel="canonical")[^>]*href=|@import\s+|url\()["']?(?:https?:)?//[^"'\s)]*"""
)
"""A script, style sheet, font or picture of another host; links for readers are none of these."""
LANGUAGES = {".py": "python", ".proto": "protobuf", ".sh": "sh", ".yml": "yaml", ".sql": "sql"}
API = "reference/python.md"
FOR_DEVELOPERS = ("decisions/", "project/")


# --- What MkDocs calls ---


def on_config(config: Any) -> Any:
    config.nav = navigation((ROOT / "docs" / "README.md").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if repository := project["tool"]["casque"]["repository"]:
        config.repo_url = repository
        config.edit_uri = "edit/HEAD/docs/"
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, text in {**api_pages(), **project_pages()}.items():
        if (there := files.get_file_from_path(name)) is not None:
            files.remove(there)
        if isinstance(text, Path):
            files.append(File.generated(config, name, abs_src_path=str(text)))
        else:
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    site_path = page.file.src_uri
    if site_path == "README.md":
        page.meta["hide"] = ["navigation"]
    if site_path.startswith(FOR_DEVELOPERS):
        page.meta["search"] = {"boost": 0.3}  # found after what users look for
    text = map_prose(markdown, lambda prose: rewrite_links(prose, site_path))
    return NAMED_FENCE.sub(r'```\1 title="\2"', text)


def on_post_build(config: Any) -> None:
    """Fails if a page would load anything from another host."""
    from mkdocs.exceptions import PluginError

    for path in Path(config.site_dir).rglob("*"):
        if path.suffix in (".html", ".css", ".svg") and (remote := REMOTE.search(path.read_text())):
            raise PluginError(f"{path.relative_to(config.site_dir)} loads from another host: {remote[0]}")


# --- Navigation ---


def navigation(index: str) -> list[Any]:
    """The lists of docs/README.md: a `##` heading is a tab, a `###` heading a group in it."""
    tabs: list[Any] = [{"Home": "README.md"}]
    inside: list[Any] = tabs
    tab: list[Any] = tabs
    for line in index.splitlines():
        if line.startswith("## "):
            tab = inside = []
            tabs.append({line[3:]: tab})
        elif line.startswith("### "):
            inside = []
            tab.append({line[4:]: inside})
        elif (bullet := BULLET.match(line)) and inside is not tabs:
            target = site_path_of(posixpath.normpath(posixpath.join("docs", bullet[2])))
            children = children_of(target)
            page = {"Overview": target} if target == API else target
            inside.append({bullet[1].replace("`", ""): [page, *children] if children else target})
    return tabs


def children_of(target: str) -> list[Any]:
    """What the navigation has below a page that is itself a list."""
    folder = ROOT / repository_path_of(target)
    if target == API:
        return [{part: api_page(part)} for part in PARTS]
    if target == "decisions/README.md":
        return [f"decisions/{path.name}" for path in sorted(folder.parent.glob("0*.md"))]
    if folder.is_dir():
        return [f"{posixpath.dirname(target)}/{name}.md" for name in programs(folder)]
    return []


# --- The API ---


def api_page(part: str) -> str:
    return f"reference/api/{part.lower().replace(' ', '-')}.md"


def api_pages() -> dict[str, str]:
    pages = {
        api_page(part): f"# {part}\n\n" + "\n".join(f"::: {name}\n" for name in names) for part, names in PARTS.items()
    }
    rows = [
        f"| [{part}]({posixpath.relpath(api_page(part), 'reference')}) | {', '.join(f'[`{n}`][{n}]' for n in names)} |"
        for part, names in PARTS.items()
    ]
    pages[API] = (
        "# Python\n\nEvery public class and function, as the code documents it. [Errors](errors.md) and"
        " [settings](settings.md) have pages of their own; the [how-tos](../README.md#how-to) show how to use"
        " them together.\n\n| part | names |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return pages


# --- Files outside docs/ ---


def site_path_of(path: str) -> str:
    """Where the site has a file of the repository: pages of docs/ at the top, everything else under project/."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"project/{path}/README.md"
    return f"project/{path}" if path.endswith((".md", ".svg", ".png")) else f"project/{path}.md"


def repository_path_of(site_path: str) -> str:
    if not site_path.startswith("project/"):
        return f"docs/{site_path}"
    path = site_path.removeprefix("project/")
    for known in (path, path.removesuffix(".md"), path.removesuffix("/README.md")):
        if (ROOT / known).exists():
            return known
    raise FileNotFoundError(f"{site_path} is the page of no file")


def project_pages() -> dict[str, str | Path]:
    """Each file outside docs/ that a page links to, and what those link to, by its place on the site."""
    found: dict[str, str | Path] = {}
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    while waiting:
        path = waiting.pop()
        text: str | Path = (ROOT / path).read_text() if path.endswith(".md") else page_of(ROOT / path)
        if not path.startswith("docs/"):
            found[site_path_of(path)] = text
        if isinstance(text, str):
            waiting += {
                target
                for target in linked(text, path)
                if not target.startswith("docs/") and site_path_of(target) not in found and target not in waiting
            }
    return found


def linked(text: str, path: str) -> Iterator[str]:
    """What a text links to inside the repository, as paths from its root."""
    folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    for _, target, _ in LINK.findall(FENCES.sub("", text)):
        if target and ":" not in target:
            yield posixpath.normpath(posixpath.join(folder, target))


def page_of(path: Path) -> str | Path:
    if path.suffix in (".svg", ".png"):
        return path
    if path.is_dir():
        return folder_page(path)
    code = path.read_text()
    return f"# {path.name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{code.rstrip()}\n````\n"


def folder_page(path: Path) -> str:
    """A list of the programs in a folder, with what the first line of each says."""
    rows = [f"| [{name}]({name}) | {said.replace('|', '&#124;')} |" for name, said in programs(path).items()]
    return f"# {path.name.capitalize()}\n\n| program | |\n|---|---|\n" + "\n".join(rows) + "\n"


def programs(folder: Path) -> dict[str, str]:
    """The programs in a folder, by name, with the first sentence of each."""
    files = {file: ast.get_docstring(ast.parse(file.read_text())) for file in sorted(folder.rglob("*.py"))}
    return {
        file.relative_to(folder).as_posix(): " ".join(text.partition("\n\n")[0].split())
        for file, text in files.items()
        if text
    }


# --- Links ---


def map_prose(markdown: str, change: Callable[[str], str]) -> str:
    """The text with everything outside fenced blocks changed."""
    parts = FENCES.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def rewrite_links(prose: str, site_path: str) -> str:
    path = repository_path_of(site_path) if not site_path.startswith("reference/api/") else f"docs/{site_path}"
    folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    here = posixpath.dirname(site_path)

    def rewritten(link: re.Match[str]) -> str:
        if not link[2] or ":" in link[2]:
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/") and target.startswith("docs/"):
            return link[0]
        return link[1] + posixpath.relpath(site_path_of(target), here or ".") + link[3]

    return LINK.sub(rewritten, prose)
