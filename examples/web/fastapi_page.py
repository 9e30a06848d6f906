"""A page for a queue that several processes share: two servers with FastAPI, and a worker.

Run it with `fastapi run fastapi_page.py`, on any number of machines with the same CASQUE_URL, and the jobs with
`casque worker fastapi_page:jobs`. What one server enqueues is on the page of the other.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import httpx
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

import casque
from casque import Queue
from casque.integrations.fastapi import lifespan, queue_of

jobs = casque.App(os.environ.get("CASQUE_URL", "memory://fastapi-page"))
api = FastAPI(lifespan=lifespan(jobs))
OpenQueue = Annotated[Queue[bytes], Depends(queue_of(jobs))]


class Picture(BaseModel):
    name: str
    width: int = 128


@jobs.job(tags=["pictures"])
async def resize(picture: Picture) -> str:
    return f"{picture.name} is {picture.width} wide"


@api.post("/pictures", status_code=202)
async def add(picture: Picture) -> dict[str, str]:
    return {"job": (await resize.enqueue(picture)).id}


@api.get("/", response_class=HTMLResponse)
async def page(queue: OpenQueue) -> str:
    """Waiting and running jobs, and how many are done."""
    totals = (await queue.stats()).totals
    rows = "".join(
        f"<tr><td>{escape(job.id)}</td><td>{escape(job.entrypoint)}</td><td>{job.state}</td></tr>"
        for job in await queue.jobs(limit=50)
    )
    return f"""<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>Pictures</title>
<h1>Pictures</h1><p>{totals.ready} waiting, {totals.running} running, {totals.done} done</p><table>{rows}</table>"""


def serve() -> None:
    """One server, on a free port, which it prints."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(api, log_level="warning")).run(sockets=[listening])


@contextmanager
def server(url: str) -> Iterator[httpx.Client]:
    """A server in a process of its own, and a client for it."""
    command, variables = [sys.executable, __file__, "serve"], {**os.environ, "CASQUE_URL": url}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{process.stdout.readline().strip()}", timeout=30) as web:
                yield web
        finally:
            process.terminate()


def main() -> None:
    with TemporaryDirectory() as place, ExitStack() as stack:
        url = (Path(place) / "queue").as_uri()
        first, second = (stack.enter_context(server(url)) for _ in range(2))
        job = first.post("/pictures", json={"name": "cat.png"}).json()["job"]
        print("the other server shows it:", job in second.get("/").text)
        worker = [sys.executable, "-m", "casque.cli", "worker", "fastapi_page:jobs", "--burst"]
        here = Path(__file__).parent
        subprocess.run(worker, cwd=here, env={**os.environ, "CASQUE_URL": url}, capture_output=True, check=True)
        for name, web in (("first", first), ("second", second)):
            print(f"the {name} server:", "0 waiting, 0 running, 1 done" in web.get("/").text)
        print("refused:", first.post("/pictures", json={"width": 7}).status_code)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
