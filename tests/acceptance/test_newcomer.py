"""The documentation, followed by a newcomer: the built wheel in a clean environment, an empty directory, no checkout.

An environment holds the wheel and what the page tells its reader to install, in locked versions. So this finds
files missing from the wheel, dependencies missing from an extra, and pages that name no extra for what they do.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.support.command_lines import in_shell, parsed
from tests.support.pages import DOCS, LIMIT_S, PAGES, ROOT, Reader, blocks, requirements, shell_lines

LONG = (
    *("enqueue-with-spark", "process-with-spark", "read-the-report", "read-with-spark", "replay-jobs"),
    *("run-the-pipeline", "run-brokers", "move-from-osqueue"),
)
"""How-tos that start Spark or servers and take a while: `make newcomer` and `make proof` run them."""
COMMANDS = {"README.md": 1, "tutorial.md": 11, "explanation/what-it-costs.md": 1, "how-to/write-your-own-worker.md": 4}
"""Pages whose shell blocks run as they stand, and their number. Those of the other pages name buckets and hosts."""

Newcomer = Callable[[Path], Reader]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [file] = place.glob("casque-*.whl")
    return file


@pytest.fixture(scope="session")
def environment_of(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Make the environment that a page asks for, once for all pages that ask for the same."""
    made: dict[tuple[str, ...], Path] = {}

    def make(page: Path) -> Path:
        wanted = tuple(requirements(page))
        if which("java") is None:
            wanted = tuple(one.replace("[spark]", "[spark-java]") for one in wanted)
        if wanted not in made:
            place = tmp_path_factory.mktemp("environment") / "venv"
            subprocess.run([ROOT / "scripts" / "newcomer", place, wheel, *wanted], check=True)
            made[wanted] = place / "bin" / "python"
        return made[wanted]

    return make


@pytest.fixture
def newcomer(environment_of: Callable[[Path], Path], tmp_path: Path) -> Newcomer:
    return lambda page: Reader(environment_of(page), tmp_path)


def page_with_code(page: str) -> Any:
    return pytest.param(
        page, marks=[pytest.mark.long, pytest.mark.timeout(2 * LIMIT_S)] if Path(page).stem in LONG else []
    )


WITH_CODE = [page for page in PAGES if page in COMMANDS or any(b.language == "python" for b in blocks(DOCS / page))]


@pytest.mark.parametrize("page", [page_with_code(page) for page in WITH_CODE])
def test_a_page_can_be_followed(page: str, newcomer: Newcomer) -> None:
    reader = newcomer(DOCS / page)

    reader.run_code(DOCS / page)
    if page in COMMANDS:
        assert reader.run_commands(DOCS / page) == COMMANDS[page]
    else:
        reader.run_tests()


def test_the_readme_can_be_followed(newcomer: Newcomer) -> None:
    reader = newcomer(ROOT / "README.md")

    reader.run_code(ROOT / "README.md")
    reader.run([str(reader.python), "-c", "import shop\nwith shop.app: shop.send.enqueue_sync('ada')"])
    printed = reader.run(["casque", "worker", "shop:app", "--concurrency", "50", "--burst"], stderr=subprocess.STDOUT)

    assert printed.endswith("1 claimed, 1 done, 0 failed\n")


ON_FILES = (
    *("back-up-a-queue", "convert-and-verify", "follow-a-queue", "production-checklist", "read-the-archive"),
    *("roll-out-changes", "serve-many-tenants", "spread-a-queue-over-shards"),
)
"""How-tos whose commands work as well on local files as on the buckets that they name."""
ENDLESS = {"serve", "worker", "top", "bench", "doctor", "zones consume"}
"""They go on until they are stopped, need a terminal, or take long; tests of their own run them."""


@pytest.mark.long
@pytest.mark.parametrize("page", ON_FILES)
def test_commands_of_a_how_to_work_on_local_files(page: str, newcomer: Newcomer) -> None:
    reader = newcomer(DOCS / "how-to" / f"{page}.md")
    for queue in ("orders", "queue"):
        reader.run(["casque", "enqueue", (reader.directory / queue).as_uri(), "send", "hello", "--zone", "acme"])
    ran = 0
    for arguments in commands_on(DOCS / "how-to" / f"{page}.md"):
        endless = {arguments[0], " ".join(arguments[:2])} & ENDLESS
        if endless or "ID" in arguments or (arguments[0] == "tail" and "--no-follow" not in arguments):
            continue
        here = reader.directory.as_uri()
        local = [re.sub(r"^(s3://[\w-]+|file:///(\w+/)*(?=\w))/?", f"{here}/", argument) for argument in arguments]
        reader.run(["casque", *local], stderr=subprocess.STDOUT, typed="y\n")
        ran += 1
    assert ran


def commands_on(page: Path) -> Iterator[list[str]]:
    """The arguments of every `casque` command on a page."""
    joined = shell_lines(page).replace("\\\n", " ").replace("$(date +%F)", "2026-11-18")
    for line in re.findall(r"^.*\bcasque .*$", joined, re.MULTILINE):
        yield from (arguments for arguments in in_shell(line) if arguments != ["--version"])


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_commands_on_a_page_are_accepted_by_the_command_line(page: str) -> None:
    for arguments in commands_on(DOCS / page):
        parsed(arguments)


def test_what_is_installed_is_casque_alone(newcomer: Newcomer) -> None:
    reader = newcomer(ROOT / "README.md")

    found = reader.run([str(reader.python), "-c", "import casque, sys; print(casque.__file__, *sys.path)"])

    assert str(ROOT) not in found
