"""Programs that check the files in `deploy/`. Tests skip for those that are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "deploy-venv"


def on_path(program: str, hint: str) -> str:
    """The path of a program that the machine has, or has not."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{program} is missing: {hint}")
    return found


def fetched(program: str) -> str:
    """The path of a program of `scripts/deploy-venv`, which is run when it is first needed. CI has to have it."""
    if (bin_ := _environment()) is None:
        why = "scripts/deploy-venv could not fetch its packages"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return str(Path(bin_) / program)


@cache
def _environment() -> str | None:
    made = subprocess.run([SCRIPT], env={**os.environ, "PYTHON": sys.executable}, stdout=subprocess.PIPE, text=True)
    return str(Path(made.stdout.strip()).parent) if made.returncode == 0 else None
