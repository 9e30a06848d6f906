"""Writes `client/sync_verbs.py`, the blocking half of `Queue`, from the async one.

.venv/bin/python scripts/sync_queue.py            writes the module anew (`make reference`)
.venv/bin/python scripts/sync_queue.py --check    writes nothing, and fails if the module is not current
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "src" / "casque" / "client"
SOURCES = {"queue.py": "Queue", "verbs.py": "LeaseVerbs"}
TARGET = CLIENT / "sync_verbs.py"

HEADER = '''"""The verbs of `SyncQueue`. Written by `make reference` from `Queue`: change that one, not this."""
# ruff: noqa: A002  arguments have the names that they have there

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
%s

T = TypeVar("T")


class SyncVerbs(Blocking[T], Generic[T]):
    """Every verb of `Queue`, without `await`."""
'''
OWN = {"Iterator", "Generic", "TypeVar", "T", "Blocking", "SyncJob"}
JOB = r"\bJob\[(T|Any)\]"


def module() -> str:
    verbs: list[str] = []
    origins: dict[str, str] = {}
    for name, class_name in SOURCES.items():
        tree = ast.parse((CLIENT / name).read_text())
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        origins |= _imported(tree) | dict.fromkeys(classes, f"casque.client.{name[:-3]}")
        verbs += [_blocking(method) for method in _verbs(tree, class_name)]
    body = "\n".join(verbs)
    used = {node.id for node in ast.walk(ast.parse(HEADER % "" + body)) if isinstance(node, ast.Name)} - OWN
    lines = [f"from {origins[name]} import {name}" for name in sorted(used & origins.keys())]
    lines.append("from casque.client.blocking import Blocking, SyncJob")
    return _formatted(HEADER % "\n".join(lines) + body)


def _imported(tree: ast.Module) -> dict[str, str]:
    """Where each name of a module comes from."""
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return {alias.name: str(node.module) for node in froms for alias in node.names}


def _verbs(tree: ast.Module, class_name: str) -> Iterator[ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for method in node.body:
                if isinstance(method, ast.AsyncFunctionDef) and not method.name.startswith("_"):
                    yield method


def _blocking(method: ast.AsyncFunctionDef) -> str:
    answer = ast.unparse(method.returns or ast.Constant(None))
    call = f"self._queue.{method.name}({_passed(method.args)})"
    if answer.startswith("AsyncGenerator["):
        answer, body = answer.replace("AsyncGenerator", "Iterator"), f"return self._each({call})"
    elif answer == "None":
        body = f"self._wait({call})"
    elif answer == "list[Job[T]]":
        body = f"return [SyncJob(job, self) for job in self._wait({call})]"
    elif answer == "Job[T]":
        body = f"return SyncJob(self._wait({call}), self)"
    elif answer == "Job[T] | None":
        body = f"job = self._wait({call})\n        return None if job is None else SyncJob(job, self)"
    else:
        body = f"return self._wait({call})"
    first = (ast.get_docstring(method) or "").split("\n\n")[0]
    doc = f'"""{" ".join(first.split())}"""' if first else f'"""As `Queue.{method.name}`."""'
    return f"""
    def {method.name}({_sync(ast.unparse(method.args))}) -> {_sync(answer)}:
        {_wrapped(doc)}
        {body}
"""


def _passed(args: ast.arguments) -> str:
    """The same arguments handed on; jobs among them as what the async queue knows them as."""
    positional = [_value(arg) for arg in args.args[1:]]
    return ", ".join([*positional, *(f"{arg.arg}={_value(arg)}" for arg in args.kwonlyargs)])


def _value(arg: ast.arg) -> str:
    takes_jobs = arg.annotation is not None and re.search(JOB, ast.unparse(arg.annotation))
    return f"[one.job if isinstance(one, SyncJob) else one for one in {arg.arg}]" if takes_jobs else arg.arg


def _sync(types: str) -> str:
    return re.sub(JOB, "SyncJob[T]", types)


def _wrapped(doc: str, width: int = 112) -> str:
    lines, line = [], ""
    for word in doc.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n        ".join([*lines, line])


def _formatted(text: str) -> str:
    """As the linter wants it: names that are not used go, imports are sorted, long lines wrapped."""
    ruff = Path(sys.executable).parent / "ruff"
    name = ["--stdin-filename", str(TARGET)]
    checked = [str(ruff), "check", "--quiet", "--select", "I,F401", "--fix", *name, "-"]
    text = subprocess.run(checked, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    wrapped = [str(ruff), "format", "--quiet", *name, "-"]
    return subprocess.run(wrapped, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> int:
    text = module()
    if "--check" in sys.argv[1:]:
        if text == (TARGET.read_text() if TARGET.exists() else ""):
            return 0
        print(f"{TARGET.relative_to(ROOT)} is not what `Queue` says: run `make reference`", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
