"""The documentation is run, not believed.

Python blocks of a page run in order in one process and share their names; top-level `await` is allowed. A block with
a file name after `python` is written to that file. Files named `test_*.py` are run by pytest in the end. On some pages,
the tutorial above all, shell blocks run too, and must print the text block that follows, but for ids and times.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer.main

import casque
from casque import DirectQueue, InMemoryStorage, QueueSettings, errors
from casque.cli.main import app
from casque.state import Event
from casque.storage import cloud_options
from tests.acceptance.web import web_packages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LONG = tuple(
    f"how-to/{page}.md"
    for page in (
        "enqueue-with-spark",
        "process-with-spark",
        "read-with-spark",
        "replay-jobs",
        "run-the-pipeline",
    )
)
"""Pages whose code starts Spark and takes a while: `make proof` runs them."""
ELSEWHERE = ("how-to/read-the-report.md", "how-to/write-your-own-worker.md")
"""Pages whose programs other tests run: one needs a warehouse, the other is run as its commands say."""
WEB = ("how-to/use-with-django.md", "how-to/use-with-fastapi.md")
"""Pages whose code needs the packages that `scripts/web-packages` fetches."""
CLASS_LINES_MAX = 500
LONG_CLASSES = {"Queue": "the list of signatures that users call, with examples"}
"""Classes that may have more lines, and why: a table is read by the row."""
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "decisions" not in path.parts)
TEXTS = [*(DOCS / page for page in PAGES), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

RUN_BLOCKS = """
import ast, asyncio, inspect, sys, types

page, lines = sys.argv[1], [int(line) for line in sys.argv[2:]]
text = open(page, encoding="utf-8").read().splitlines()
sys.path.insert(0, ".")
with asyncio.Runner() as runner:
    for start in lines:
        end = text.index("```", start)
        # Padded, so that a traceback names the line of the page.
        source = "\\n" * start + "\\n".join(text[start:end])
        code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, globals())
        if inspect.iscoroutine(result):
            runner.run(result)
"""


class Block(NamedTuple):
    language: str
    file: str
    line: int
    """The number of its first line, from 0."""
    text: str


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        if opening := re.fullmatch(r"```(\w+) ?(\S*)", lines[number]):
            end = lines.index("```", number)
            yield Block(opening[1], opening[2], number + 1, "\n".join(lines[number + 1 : end]) + "\n")
            number = end
        number += 1


def told_in_code(page: str) -> Any:
    marks = [pytest.mark.long] if page in LONG else []
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize(
    "page",
    [
        told_in_code(page)
        for page in PAGES
        if page not in ELSEWHERE and any(b.language == "python" for b in blocks(DOCS / page))
    ],
)
def test_the_code_on_a_page_runs(page: str, tmp_path: Path) -> None:
    found = list(blocks(DOCS / page))
    for block in found:
        if block.language == "python" and block.file:
            (tmp_path / block.file).write_text(block.text)
    packages = web_packages() if page in WEB else {}
    if plain := [str(block.line) for block in found if block.language == "python" and not block.file]:
        run([sys.executable, "-W", "error", "-c", RUN_BLOCKS, str(DOCS / page), *plain], tmp_path, variables=packages)
    if tests := sorted(path.name for path in tmp_path.glob("test_*.py")):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_asyncio.plugin",
            *tests,
        ]
        # Most of the time would go into plugins that no page uses.
        run(command, tmp_path, variables={**packages, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    if not plain and not tests:
        modules = ", ".join(path.stem for path in tmp_path.glob("*.py"))
        run([sys.executable, "-W", "error", "-c", f"import {modules}"], tmp_path)


@pytest.mark.parametrize(("page", "commands"), [("tutorial.md", 10), ("how-to/write-your-own-worker.md", 4)], ids=str)
def test_commands_print_what_the_page_shows(page: str, commands: int, tmp_path: Path) -> None:
    found = list(blocks(DOCS / page))
    ran, job_id = 0, ""
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.language != "sh":
            continue
        assert following is not None
        assert following.language == "text"
        command = block.text.replace(" ID\n", f" {job_id}\n")
        printed = run(["bash", "-c", command], tmp_path, fails=command.endswith(" crash\n"), stderr=subprocess.STDOUT)
        assert _alike(printed, tmp_path) == _alike(following.text, Path("/home/you/tutorial"))
        job_id = next(iter(re.findall(UUID, printed)), job_id)
        ran += 1
    assert ran == commands


UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
CHANGING = {
    UUID: "ID",
    r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)?": "TIME",
    r"[\w.-]+-[0-9a-f]{16}\b": "WORKER",
    r"\b\d+ ms\b": "MS",
    r"\b\d+(?:\.\d)? [smhd]\b": "SPAN",
    r' File ".*…$': "",  # cut to the width of the terminal
    r"^bash: line .* Killed .*\n": "",
    r"[ \t]+": " ",
    r"\s+$": "",
}
"""What is never the same twice."""


def _alike(printed: str, directory: Path) -> list[str]:
    printed = printed.replace(str(directory), "DIRECTORY")
    for pattern, word in CHANGING.items():
        printed = re.sub(pattern, word, printed, flags=re.MULTILINE)
    return printed.splitlines()


def test_unit_tests_are_in_folders_named_like_what_they_test() -> None:
    for path in (ROOT / "tests" / "unit").rglob("test_*.py"):
        *folders, name = path.relative_to(ROOT / "tests" / "unit").parts
        tested = Path(*folders) if folders else Path(name.removeprefix("test_"))
        assert (ROOT / "src" / "casque" / tested).exists(), f"{path.name} tests nothing named {tested}"


def test_no_class_is_longer_than_a_reader_can_follow() -> None:
    long = {
        node.name
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= CLASS_LINES_MAX
    }
    assert long == LONG_CLASSES.keys(), f"split classes of more than {CLASS_LINES_MAX} lines, one job each"


@pytest.mark.parametrize("path", TEXTS, ids=[str(path.relative_to(ROOT)) for path in TEXTS])
def test_every_link_and_every_named_file_is_there(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        assert place.exists(), f"{path.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target
    for name in re.findall(r"`((?:tests|simulation|benchmarks|examples|scripts|docs)/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_every_scenario_of_failure_names_a_test_that_exists() -> None:
    page = (DOCS / "explanation" / "failure-scenarios.md").read_text()
    scenarios = [line for line in page.splitlines() if line.startswith("| ") and "the test |" not in line]
    for line in scenarios:
        named = re.findall(r"`((?:\w+/)+test_\w+\.py)(?:::(test_\w+))?`", line.split("|")[3])
        assert named, line
        for file, test in named:
            assert (
                f"def {test}(" in (ROOT / "tests" / file).read_text() if test else (ROOT / "tests" / file).exists()
            ), line
    assert len(scenarios) > 40


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    for setting in fields(QueueSettings):
        [default] = re.findall(rf"^\| `{setting.name}` \| ([^|]*) \|", page, re.MULTILINE)
        assert _words(setting.default) == default.partition(";")[0].strip(), setting.name


def test_every_error_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.CasqueError) and kind is not errors.CasqueError:
            assert f"| `{name}` |" in page, name


def test_every_option_and_variable_of_a_cloud_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "urls-and-options.md").read_text()
    names = {name for options in cloud_options._NAMES.values() for name in options}
    variables = {name for several in cloud_options._ENDPOINT_VARIABLES.values() for name in several}
    for name in names | variables | set(cloud_options._OURS) | {"emulator"}:
        assert f"`{name}`" in page, name


def test_every_field_of_the_document_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "document-format.md").read_text()
    kept = json.loads((ROOT / "tests" / "compat" / "casque-0.1" / "everything.json").read_text())
    for field in {*kept, *kept["counters"], *(field for job in kept["jobs"] for field in job)}:
        assert f"`{field}`" in page, field


async def test_the_example_document_is_a_queue() -> None:
    [example] = [block.text for block in blocks(DOCS / "reference" / "document-format.md") if block.language == "json"]
    state = await DirectQueue(InMemoryStorage(example.encode())).read_state()
    assert (state.version, len(state.jobs), len(state.in_progress_jobs())) == (3, 2, 1)


def test_every_command_has_a_section_in_the_reference_with_its_options_and_no_others() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    sections = re.findall(r"^## (`casque[^\n]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    everywhere = {"--queue", "-q", "--app", "--ca", "--option", "-o", "--help", "-h"}  # told once, in "Which queue"
    options: dict[str, set[str]] = {title: set(everywhere) for title, _ in sections}
    for name, command in commands("casque", typer.main.get_command(app)):
        if command.hidden:
            continue  # another name of a command
        [(title, text)] = [one for one in sections if re.search(rf"`{name}[ `]", one[0])]
        own = {option for one in command.params for option in (*one.opts, *one.secondary_opts) if option[0] == "-"}
        assert own - everywhere <= set(re.findall(r"`(--?[a-zA-Z][\w-]*)", text)), name
        options[title] |= own
    for title, text in sections:
        rows = re.findall(r"^\|(.*?)\|", text, re.MULTILINE)
        told = {option for row in rows for option in re.findall(r"`(--?[a-zA-Z][\w-]*)", row)}
        assert told <= options[title], title


def test_what_the_code_says_is_what_the_reference_says() -> None:
    script = ROOT / "scripts" / "reference.py"
    assert run([sys.executable, str(script), "--check"], ROOT) == ""


def test_the_map_for_contributors_has_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [re.sub(r"[()]", "", layer) for layer in contracts[0]["layers"]]
    drawn = (ROOT / "CONTRIBUTING.md").read_text().partition("## Map")[2].split("\n\n")[2]
    assert [re.split(r"\s{2,}", line.strip())[0] for line in drawn.splitlines()] == checked


def test_the_blocking_queue_is_written_from_the_async_one() -> None:
    assert run([sys.executable, str(ROOT / "scripts" / "sync_queue.py"), "--check"], ROOT) == ""


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    for name in casque.__all__:
        thing = getattr(casque, name)
        if thing is not QueueSettings and not (isinstance(thing, type) and issubclass(thing, BaseException)):
            assert f"### `casque.{name}`" in page, f"{name}: add it to PARTS in scripts/public_names.py"


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups' commands too."""
    for sub, found in getattr(command, "commands", {}).items():
        if hasattr(found, "commands"):
            yield from commands(f"{name} {sub}", found)
        else:
            yield f"{name} {sub}", found


def test_every_field_of_the_log_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "log-format.md").read_text()
    kept = ROOT / "tests" / "compat" / "casque-0.1-log"
    head = json.loads((kept / "queue.json").read_text())
    led = json.loads((kept / "heads" / "led.json").read_text())
    segments = [json.loads(path.read_text()) for path in (kept / "log").iterdir()]
    snapshots = [json.loads(path.read_text()) for path in (kept / "snapshots").iterdir()]
    named = {*head, *head["snapshot"], *led["owner"], *segments[0], *(name for each in snapshots for name in each)}
    named |= {name for each in snapshots if "tip" in each for name in each["tip"]}
    named |= {name for each in snapshots for part in each.get("parts", []) for name in part}
    named |= {event[0] for segment in segments for event in segment["events"]}
    named |= {field for event in get_args(Event) for field in event.__struct_fields__ if field != "spec"}
    for field in named:
        assert f"`{field}`" in page, field


def run(
    command: list[str],
    directory: Path,
    *,
    fails: bool = False,
    stderr: int = subprocess.PIPE,
    variables: Mapping[str, str] | None = None,
) -> str:
    here = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CASQUE_URL": (directory / "queue").as_uri(),
        "COLUMNS": "300",
        **(variables or {}),
    }
    ended = subprocess.run(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=120
    )
    assert (ended.returncode != 0) == fails, ended.stdout + (ended.stderr or "")
    return ended.stdout


def _words(default: Any) -> str:
    """A default as the reference writes it."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, int):
        return f"{default:,}"
    seconds = default.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    amount, unit = (seconds / 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{amount:g} {unit}" + ("s" if amount != 1 else "")
