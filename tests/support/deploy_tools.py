"""Programs that check the files in `deploy/`. Tests skip for those that are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def on_path(program: str, hint: str) -> str:
    """The path of a program that the machine has, or has not."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{program} is missing: {hint}")
    return found


def fetched(program: str) -> str:
    """The path of a program of `scripts/deploy-venv`, which is run when it is first needed. CI has to have it."""
    if (python := _printed_by("deploy-venv")) is None:
        why = "scripts/deploy-venv could not fetch its packages"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return str(Path(python).parent / program)


def promtool() -> str:
    """The path of promtool, which `scripts/promtool` fetches when it is first needed."""
    if (found := _printed_by("promtool")) is None:
        pytest.skip("there is no promtool: install Prometheus, or let apt-get download Debian's package `prometheus`")
    return found


@cache
def _printed_by(script: str) -> str | None:
    """The path that a script prints; None if it failed."""
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run([SCRIPTS / script], env=environment, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip() if made.returncode == 0 else None
