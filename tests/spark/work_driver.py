"""A driver of its own, to be killed: `python work_driver.py JSON`.

Runs `process` on a Connect server or on separate workers, as a program of a user would, and prints the figures. `dies`
says where it kills itself; whoever started it may kill it as well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from casque import Job
from casque.spark import process
from casque.spark.session import local_session
from casque.spark.work import foreman, settling

SEPARATE = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "OFF",
}


def noting(place: Path) -> Callable[[Job[bytes]], None]:
    """Leaves a mark for every call."""

    def handler(job: Job[bytes]) -> None:
        with (place / f"ran-{job.payload.decode()}").open("a") as ran:
            ran.write("x")

    return handler


def waiting(place: Path) -> Callable[[Job[bytes]], None]:
    """Waits until it is told to go on."""

    def handler(job: Job[bytes]) -> None:
        import threading

        (place / "begun").touch()
        while not (place / "go").exists():
            threading.Event().wait(0.01)

    return handler


def losing(place: Path) -> Callable[[Job[bytes]], None]:
    """The first one to come takes its whole executor with it, the Java of its Python."""

    def handler(job: Job[bytes]) -> None:
        noting(place)(job)
        if not (place / "lost").exists():
            (place / "lost").touch()
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)

    return handler


HANDLERS = {"noting": noting, "waiting": waiting, "losing": losing}


def die(where: str) -> None:
    settle = settling.settle

    async def dying(*arguments: Any) -> Any:
        if where == "before the settling":
            os.kill(os.getpid(), signal.SIGKILL)
        await settle(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(foreman, "settle", dying)  # noqa: B010  where it is used


def main() -> None:
    given = json.loads(sys.argv[1])
    if given.get("dies"):
        die(given["dies"])
    if given.get("remote"):
        spark = local_session("casque-work", remote=given["remote"])
    else:
        spark = local_session("casque-work", master="local-cluster[2,1,512]", settings=SEPARATE)
    for run in given["runs"]:
        handler = HANDLERS[run.pop("handler")](Path(run.pop("place")))
        print(json.dumps(process(spark, run.pop("url"), handler, **run).as_dict()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
