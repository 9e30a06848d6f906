"""The suite in `django_side.py`, run by Django: 5.2 with django-tasks, and 6 with its own Tasks API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.web import web_packages

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NO_PYTHON = 3

pytestmark = pytest.mark.xdist_group("django")


def run_suite(python: str, place: Path, **variables: str) -> str:
    ran = subprocess.run(
        [python, "-W", "error::ResourceWarning", HERE / "django_side.py"],
        cwd=place,
        env={**os.environ, "DJANGO_SIDE": str(place), **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [number] = re.findall(r"^Ran (\d+) tests", ran.stderr, re.MULTILINE)
    assert int(number) >= 30
    return ran.stderr


def test_the_tasks_of_django_5_run_on_casque(tmp_path: Path) -> None:
    run_suite(sys.executable, tmp_path, **web_packages())


def test_the_tasks_of_django_6_run_on_casque(tmp_path: Path) -> None:
    made = subprocess.run([ROOT / "scripts" / "django-venv"], capture_output=True, text=True)
    if made.returncode == NO_PYTHON and os.environ.get("CI") != "true":
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]

    run_suite(made.stdout.strip(), tmp_path, PYTHONPATH=os.pathsep.join(path for path in paths if path))


def test_without_the_tasks_api_the_backend_says_what_is_missing(tmp_path: Path) -> None:
    """Django 5.2 alone."""
    place = tmp_path / "django_tasks"
    place.mkdir()
    (place / "__init__.py").write_text("raise ImportError('not installed')\n")
    paths = [str(tmp_path), web_packages().get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    ran = subprocess.run(
        [sys.executable, "-c", "from casque.integrations.django import CasqueBackend"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )

    assert ran.returncode != 0
    assert "NotInstalledError" in ran.stderr
    assert "pip install django-tasks" in ran.stderr
