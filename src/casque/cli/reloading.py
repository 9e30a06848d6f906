"""`casque worker --reload`: start a command again whenever the code changes. For development.

The command runs in a child process, so that every start imports everything anew. Files are compared by time and size
twice a second, which needs no other package and works on every file system.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import typer

from casque.cli.output import say

INTERVAL_S = 0.5
FILES_MAX = 20_000
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "build", "dist"})
State = dict[Path, tuple[int, int]]


def run_again_on_changes() -> None:
    """Run this command without `--reload` in a child process, and again after every change. Ends with it, if it ends
    by itself or is stopped."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    command = [sys.executable, "-m", "casque.cli.leash", *(one for one in sys.argv[1:] if one != "--reload")]
    here = Path.cwd()
    before = snapshot(here)
    child = _start(command)
    while True:
        stopping = stop.wait(INTERVAL_S)
        if stopping:
            raise typer.Exit(_end(child))
        after = snapshot(here)
        changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        if changed:
            say(f"{changed[0].relative_to(here)} changed: starting again", err=True)
            _end(child)
            before, child = after, _start(command)
        elif child.poll() is not None and child.returncode == 0:
            raise typer.Exit(0)  # --burst
        # A worker that failed, usually because of a typing mistake, starts again after the next change.


def snapshot(root: Path) -> State:
    """Time and size of every Python file below a directory, without hidden directories and installed packages."""
    found: State = {}
    for path in _python_files(root):
        try:
            status = path.stat()
        except OSError:
            continue  # it was removed just now
        found[path] = status.st_mtime_ns, status.st_size
        if len(found) >= FILES_MAX:
            break
    return found


def _python_files(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        names[:] = [one for one in names if not _is_skipped(directory, one)]
        yield from (Path(directory, one) for one in files if one.endswith(".py"))


def _is_skipped(directory: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED or Path(directory, name, "pyvenv.cfg").exists()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C is for this process, which stops the child.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Stop the child cleanly: it gives its jobs back, or finishes them within its --drain."""
    if child.poll() is None:
        child.terminate()
    return child.wait()
