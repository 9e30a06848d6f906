"""A disk that remembers every step, and can show what a power failure may leave of them.

`Recorder` stands between casque and the system calls for files below one directory. A name that was given, changed or
taken away is on disk once its directory has been synced after it, the content of a file once the file has been. What
is not synced may be there or not, in any combination: `Recorder.crash` makes one such combination in a new directory.
"""

# ruff: noqa: PTH119, PTH120 (it stands in for these calls)

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from casque.clock import Random


@dataclass(eq=False)
class Node:
    """A file or a directory, whatever it is called."""

    directory: bool
    content: bytes = b""


@dataclass
class Step:
    """`entries` are changed in `parent` as one: a node for a new name, None for one that is gone."""

    parent: Node
    entries: dict[str, Node | None]


@dataclass
class Sync:
    node: Node
    content: bytes = b""


@dataclass
class Acknowledged:
    """What the program was promised at this point."""

    what: str


@dataclass
class Recorder:
    root: str
    rng: Random
    refuse: float = 0.0
    """The chance that the sync of a directory fails. What it should have written is then not on disk."""
    steps: list[Step | Sync | Acknowledged] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._top = Node(directory=True)
        self._nodes: dict[str, Node] = {self.root: self._top}
        self._open: dict[int, Node] = {}

    def acknowledge(self, what: str) -> None:
        with self._lock:
            self.steps.append(Acknowledged(what))

    # --- Recording ---

    @contextmanager
    def recording(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        with patch.context() as patched:
            patched.setattr(os, "fsync", self._fsync)  # a real one would only take time
            patched.setattr(os, "close", self._closing(os.close))
            for name, record in {
                "open": self._opened,
                "write": self._write,
                "link": self._link,
                "rename": self._rename,
                "unlink": self._unlink,
                "mkdir": self._mkdir,
            }.items():
                patched.setattr(os, name, self._recorded(getattr(os, name), record))
            yield

    def _recorded(self, real: Any, record: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                answer = real(*args, **kwargs)
                record(answer, *args)
                return answer

        return call

    def _closing(self, real: Any) -> Any:
        def close(fd: int) -> None:
            with self._lock:
                self._open.pop(fd, None)
                real(fd)

        return close

    def _opened(self, fd: int, path: Any, flags: int, *_mode: int) -> None:
        path = os.fspath(path)
        if flags & os.O_CREAT and path not in self._nodes:
            self._named(path, Node(directory=False))
        if (node := self._nodes.get(path)) is not None:
            self._open[fd] = node

    def _write(self, written: int, fd: int, data: Any) -> None:
        if (node := self._open.get(fd)) is not None:
            node.content += bytes(data[:written])

    def _fsync(self, fd: int) -> None:
        with self._lock:
            node = self._open.get(fd)
            if node is None:
                return
            if node.directory and self.rng.random() < self.refuse:
                self.failed += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.steps.append(Sync(node, node.content))

    def _link(self, _: None, source: str, target: str) -> None:
        self._named(target, self._nodes.get(source))

    def _rename(self, _: None, source: str, target: str) -> None:
        node = self._nodes.pop(source, None)
        parent = self._nodes.get(os.path.dirname(target))
        if node is not None and parent is not None:
            assert os.path.dirname(source) == os.path.dirname(target)
            self._nodes[target] = node
            self.steps.append(Step(parent, {os.path.basename(source): None, os.path.basename(target): node}))

    def _unlink(self, _: None, path: str) -> None:
        parent = self._nodes.get(os.path.dirname(path))
        if self._nodes.pop(path, None) is not None and parent is not None:
            self.steps.append(Step(parent, {os.path.basename(path): None}))

    def _mkdir(self, _: None, path: Any, *_mode: int) -> None:
        self._named(os.fspath(path), Node(directory=True))

    def _named(self, path: str, node: Node | None) -> None:
        parent = self._nodes.get(os.path.dirname(path))
        if node is not None and parent is not None:
            self._nodes[path] = node
            self.steps.append(Step(parent, {os.path.basename(path): node}))

    # --- Crashing ---

    def crash(self, at: int, kept: float, target: Path) -> list[str]:
        """What may be on disk if the power fails after `at` steps, below `target`; what was acknowledged by then.

        `kept` is the chance of each step that was not synced to have reached the disk all the same.
        """
        done = self.steps[:at]
        synced: dict[int, int] = {}
        contents: dict[int, bytes] = {}
        for n, step in enumerate(done):
            if isinstance(step, Sync):
                synced[id(step.node)] = n
                contents[id(step.node)] = step.content
        entries: dict[int, dict[str, Node]] = {}
        for n, step in enumerate(done):
            if not isinstance(step, Step):
                continue
            if n > synced.get(id(step.parent), -1) and self.rng.random() >= kept:
                continue
            names = entries.setdefault(id(step.parent), {})
            for name, node in step.entries.items():
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        self._build(self._top, target, entries, contents, {})
        return [step.what for step in done if isinstance(step, Acknowledged)]

    def _build(
        self,
        node: Node,
        target: Path,
        entries: dict[int, dict[str, Node]],
        contents: dict[int, bytes],
        built: dict[int, Path],
    ) -> None:
        target.mkdir()
        for name, child in entries.get(id(node), {}).items():
            path = target / name
            if child.directory:
                self._build(child, path, entries, contents, built)
            elif id(child) in built:
                path.hardlink_to(built[id(child)])
            else:
                # Of content that was never synced any part may be there.
                part = child.content[: self.rng.randrange(len(child.content) + 1)]
                path.write_bytes(contents.get(id(child), part))
                built[id(child)] = path
