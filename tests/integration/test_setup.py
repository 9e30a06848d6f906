"""How a checkout is set up: lock files, the choice of an interpreter, and the workflows that do it elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_running_needs_a_part_of_what_testing_needs_in_the_same_versions_and_with_hashes() -> None:
    run, dev = locked("run.lock"), locked("dev.lock")

    assert run.items() <= dev.items()
    assert {"pyspark", "grpcio", "starlette", "hatchling"} <= {name for name, _ in run}
    assert not {"pytest", "mypy", "ruff", "moto"} & {name for name, _ in run}
    assert all(dev.values())
    assert [name for name, _ in locked("installer.lock")] == ["uv"]


def test_no_lock_file_names_an_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        assert "://" not in path.read_text(), path.name


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ("5000 /first\n4500 /little/faster\n", "/first"),
        ("5000 /first\n4000 /faster\n3000 /fastest\n3500 /between\n", "/fastest"),
        ("3000 /first\n5000 /slower\n", "/first"),
        ("", ""),
    ],
)
def test_the_first_python_is_taken_unless_another_is_clearly_faster(found: str, chosen: str) -> None:
    assert shell("source scripts/pythons.sh && choose_python", told=found) == chosen


def test_each_python_on_the_path_is_listed_once_and_old_ones_are_not(tmp_path: Path) -> None:
    def program(directory: str, name: str, text: str) -> None:
        path = tmp_path / directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    program("one", "python3", "echo 4000 /usr/bin/python3.12")
    program("one", "python3.13", "exit 1")  # a shim, or too old
    program("two", "python3", "echo 3000 /opt/python3.11")
    program("two", "python3.12", "echo 4100 /usr/bin/python3.12")

    path = f"{tmp_path}/one:{tmp_path}/two:{os.defpath}"
    listed = shell("source scripts/pythons.sh && list_pythons", PATH=path).splitlines()
    assert listed[:2] == ["4000 /usr/bin/python3.12", "3000 /opt/python3.11"]
    assert sum("/usr/bin/python3.12" in line for line in listed) == 1


def test_an_interpreter_prints_its_speed_and_its_own_path() -> None:
    speed, path = shell(f"{sys.executable} -I scripts/speed.py").split()
    assert 100 < int(speed) < 1_000_000
    assert path == os.path.realpath(sys.executable)


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false"])
def test_a_python_that_cannot_be_used_is_named_and_nothing_is_made(tmp_path: Path, python: str) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")

    ended = subprocess.run(
        [tmp_path / "scripts" / "setup", "run"],
        env=os.environ | {"CASQUE_PYTHON": python},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr == f"CASQUE_PYTHON={python} is not Python 3.11 or newer: name another, or unset it\n"
    assert not (tmp_path / ".venv").exists()


def test_the_index_and_the_certificates_of_pip_are_those_of_uv() -> None:
    show = 'source scripts/installer.sh && _share_pip_settings && echo "$UV_DEFAULT_INDEX $SSL_CERT_FILE"'
    settings = {"CASQUE_PYTHON": sys.executable, "PIP_INDEX_URL": "https://mirror.example/simple", "PIP_CERT": "/a.pem"}

    assert shell(show, **settings, SSL_CERT_FILE="") == "https://mirror.example/simple /a.pem"
    own = shell(show, **settings, UV_DEFAULT_INDEX="https://own.example/simple", SSL_CERT_FILE="/own.pem")
    assert own == "https://own.example/simple /own.pem"


def test_there_is_no_uv_where_pip_is_asked_for() -> None:
    assert shell('source scripts/installer.sh && find_uv && echo "[$uv]"', CASQUE_INSTALLER="pip") == "[]"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_little_and_runs_only_actions_of_one_commit(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())

    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file(), name
            continue
        assert job["timeout-minutes"] <= 60, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), name
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}
            # What a tag or a branch is called must not become part of a command.
            assert "${{" not in step.get("run", ""), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_makes_what_the_makefile_has(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = re.findall(r"\bmake ([a-z-]+)", path.read_text())

    assert made
    assert set(made) <= targets


def test_the_versions_that_are_tested_are_those_that_are_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]

    assert jobs["python"]["strategy"]["matrix"]["python"] == promised
    makefile = (ROOT / "Makefile").read_text()
    assert f"PYTHONS ?= {' '.join(promised)}\n" in makefile
    sparks = jobs["spark"]["strategy"]["matrix"]["spark"]
    assert f"SPARK ?= {' '.join(sparks)}\n" in makefile
    assert any(version.startswith(f"{sparks[-1]}.") for name, version in locked("dev.lock") if name == "pyspark")


def locked(name: str) -> dict[tuple[str, str], set[str]]:
    """Hashes by name and version."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in re.split(r"\n(?=\w)", (ROOT / "requirements" / name).read_text()):
        package, _, version = entry.partition("==")
        found[package, version.split()[0]] = set(re.findall(r"sha256:\w{64}", entry))
    return found


def shell(command: str, *, told: str = "", **environment: str) -> str:
    ended = subprocess.run(
        ["bash", "-euc", command], cwd=ROOT, env=os.environ | environment, input=told, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
