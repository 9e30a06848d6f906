"""Starts drivers in processes of their own, and kills them with all that belongs to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

DRIVER = Path(__file__).with_name("driver.py")


class Driver:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def result(self) -> Any:
        """What it said in the end."""
        out, _ = self._process.communicate()
        assert self._process.returncode == 0, out
        return json.loads(out.splitlines()[-1])

    def kill(self) -> None:
        """Like a machine that is gone: the driver, its Java and the processes that run Python."""
        for pid in _descendants(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()


@contextmanager
def driving(task: str, given: dict[str, Any], tmp_path: Path) -> Iterator[Driver]:
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "spark-work"),
    }
    with (tmp_path / f"driver-{os.urandom(4).hex()}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), task, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
    driver = Driver(process)
    try:
        yield driver
    except BaseException:
        print(Path(log.name).read_text()[-3000:])
        raise
    finally:
        driver.kill()
        assert process.stdout is not None
        process.stdout.close()


def _descendants(pid: int) -> list[int]:
    """It and everything that it has started, as Linux has it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += _descendants(child)
    return found
