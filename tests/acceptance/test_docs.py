"""The documentation agrees with the code: links, files, options, fields, generated pages.

`test_newcomer.py` runs the code and the commands on the pages.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import casque
from casque import DirectQueue, InMemoryStorage, QueueSettings, errors
from casque.cli.main import app
from casque.service import Scope, requests
from casque.state import Event
from casque.storage import cloud_options
from tests.support.command_lines import commands
from tests.support.pages import DOCS, PAGES, ROOT, blocks

CLASS_LINES_MAX = 500
LONG_CLASSES = {"Queue": "the list of signatures that users call, with examples"}
"""Classes that may have more lines, and why: a table is read by the row."""
TEXTS = [*(DOCS / page for page in PAGES), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


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


def test_every_verb_is_in_the_reference_of_metrics() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    kinds = [kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, requests.Request)]
    verbs = [requests.verb_of(kind) for kind in kinds if kind is not requests.Request and kind.scope is not Scope.PEER]
    assert len(verbs) > 20
    for verb in verbs:
        assert f"`{verb}`" in page, verb


def test_every_call_of_the_grpc_service_is_in_the_reference() -> None:
    proto = (ROOT / "proto" / "casque" / "v1" / "queue.proto").read_text()
    page = (DOCS / "reference" / "grpc.md").read_text()
    calls = re.findall(r"^\s*rpc (\w+)", proto, re.MULTILINE)
    assert calls
    for call in calls:
        assert f"`{call}`" in page, call


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
    assert printed_by(script, "--check") == ""


def test_the_map_for_contributors_has_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [re.sub(r"[()]", "", layer) for layer in contracts[0]["layers"]]
    drawn = (ROOT / "CONTRIBUTING.md").read_text().partition("## Map")[2].split("\n\n")[2]
    assert [re.split(r"\s{2,}", line.strip())[0] for line in drawn.splitlines()] == checked


def test_the_blocking_queue_is_written_from_the_async_one() -> None:
    assert printed_by(ROOT / "scripts" / "sync_queue.py", "--check") == ""


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    for name in casque.__all__:
        thing = getattr(casque, name)
        if thing is not QueueSettings and not (isinstance(thing, type) and issubclass(thing, BaseException)):
            assert f"### `casque.{name}`" in page, f"{name}: add it to PARTS in scripts/public_names.py"


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


def printed_by(script: Path, *arguments: str) -> str:
    ended = subprocess.run([sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
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
