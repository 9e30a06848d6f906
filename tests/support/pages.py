"""The pages of the documentation, and a reader who follows one: its code, its commands and its tests.

Python blocks of a page run in order in one process and share their names; top-level `await` is allowed. A block with
a file name after `python` is written to that file. Files named `test_*.py` are run by pytest in the end. A shell block
must print the text block that follows it, except for ids and times.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "decisions" not in path.parts)


LIMIT_S = 600.0
"""For one command: Spark on a busy machine takes minutes."""


class Block(NamedTuple):
    language: str
    file: str
    line: int
    """The number of its first line, from 0."""
    text: str

    @property
    def end(self) -> int:
        """The number of the line that closes it."""
        return self.line + self.text.count("\n")


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        if opening := re.fullmatch(r"```(\w+) ?(\S*)", lines[number]):
            end = lines.index("```", number)
            yield Block(opening[1], opening[2], number + 1, "\n".join(lines[number + 1 : end]) + "\n")
            number = end
        number += 1


def shell_lines(page: Path) -> str:
    """Everything on a page that is typed at a shell: shell blocks, and commands in indented blocks."""
    indented = re.findall(r"^    ((?:casque|pip) .*)$", page.read_text(), re.MULTILINE)
    return "".join(block.text for block in blocks(page) if block.language in ("sh", "bash")) + "\n".join(indented)


def requirements(page: Path) -> list[str]:
    """What a page tells its reader to install."""
    commands = re.findall(r"^ *pip install (.*)|`pip install ([^`]+)`", page.read_text(), re.MULTILINE)
    words = {word for command in commands for word in shlex.split("".join(command), comments=True) if word[0] != "-"}
    return sorted(words | {"casque"})


RUN_BLOCKS = """
import ast, asyncio, inspect, pathlib, sys

page, lines = sys.argv[1], [int(line) for line in sys.argv[2:]]
text = pathlib.Path(page).read_text(encoding="utf-8").splitlines()
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


@dataclass(frozen=True)
class Reader:
    """Follows a page in an empty directory, with an interpreter and what is installed beside it, and nothing else."""

    python: Path
    directory: Path

    def run_code(self, page: Path) -> None:
        found = [block for block in blocks(page) if block.language == "python"]
        for block in found:
            if block.file:
                (self.directory / block.file).write_text(block.text)
        if plain := [str(block.line) for block in found if not block.file]:
            self.run([str(self.python), "-W", "error", "-c", RUN_BLOCKS, str(page), *plain])

    def run_tests(self) -> None:
        if tests := sorted(path.name for path in self.directory.glob("test_*.py")):
            self.run([str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests])

    def run_commands(self, page: Path) -> int:
        """Run the shell blocks of a page and compare what they print. Returns their number."""
        found = list(blocks(page))
        ran, job_id = 0, ""
        for block, following in zip(found, [*found[1:], None], strict=True):
            if block.language != "sh":
                continue
            command = block.text.replace(" ID\n", f" {job_id}\n")
            # Done already, when the environment was made.
            command = re.sub(r"^pip install .*\n", "", command, flags=re.MULTILINE)
            printed = self.run(["bash", "-c", command], fails=command.endswith(" crash\n"), stderr=subprocess.STDOUT)
            if following is not None and following.language == "text" and following.line == block.end + 3:
                assert _alike(printed, self.directory) == _alike(following.text, Path("/home/you/tutorial"))
            job_id = next(iter(re.findall(UUID, printed)), job_id)
            ran += 1
        return ran

    def run(self, command: list[str], *, fails: bool = False, stderr: int = subprocess.PIPE, typed: str = "") -> str:
        environment = {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.directory),  # no settings of whoever runs the tests
            "LANG": "C.UTF-8",
            "CASQUE_URL": (self.directory / "queue").as_uri(),
            "COLUMNS": "300",
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        ended = subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            input=typed,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=LIMIT_S,
        )
        assert (ended.returncode != 0) == fails, ended.stdout + (ended.stderr or "")
        return ended.stdout


UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
CHANGING = {
    UUID: "ID",
    r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)?": "TIME",
    r"[\w.-]+-[0-9a-f]{16}\b": "WORKER",
    r"\b\d+ ms\b": "MS",
    r"\b\d+(?:\.\d)? [smhd]\b|\b\d+\.\d\ds\b": "SPAN",
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
