"""Runs take place in fresh processes: no warm heap, and no progress bar beside them.

What they leave on disk is deleted when all are over. A file system may be slow for minutes after thousands of deletions
(ext4 without a journal passes over every inode freed lately), and each run would pay for the one before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.load import Result, Run
from benchmarks.scale import Scale

_ROOT = Path(__file__).resolve().parent.parent
_LIMIT_S = 300


def casque(run: Run) -> Result:
    return _carry_out(sys.executable, "benchmarks.casque_driver", run)


def jqueue(run: Run) -> Result:
    python = jqueue_python()
    assert python is not None, "ask have_jqueue() first"
    return _carry_out(python, "benchmarks.jqueue_driver", run)


def deep(run: Run) -> dict[str, float]:
    """A task of `deep_driver`, and the figures it found."""
    found: dict[str, float] = _output(sys.executable, "benchmarks.deep_driver", run)
    return found


def grpc(run: Run) -> dict[str, float]:
    """A task of `grpc_driver`, and the figures it found."""
    found: dict[str, float] = _output(sys.executable, "benchmarks.grpc_driver", run)
    return found


def have_jqueue(scale: Scale) -> bool:
    return scale.with_jqueue and jqueue_python() is not None


@cache
def jqueue_python() -> str | None:
    """A Python that has jqueue 1.0 installed; None where it cannot be had (it needs 3.12)."""
    script = _ROOT / "scripts" / "jqueue-venv"
    if not script.exists():
        return None
    found = subprocess.run([str(script)], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return found.stdout.split("\n")[-2].strip() if found.returncode == 0 and found.stdout.strip() else None


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="casque-bench-", ignore_cleanup_errors=True)


def _carry_out(python: str, driver: str, run: Run) -> Result:
    return Result(**_output(python, driver, run))


def _output(python: str, driver: str, run: Run) -> Any:
    done = subprocess.run(
        [python, "-m", driver, json.dumps(asdict(run))],
        cwd=_ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": _place().name},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{driver} failed on {run}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)
