"""Convert a queue to the other layout and back, and check that it is whole, with the commands an operator would use."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from casque import Queue


def casque(*arguments: str) -> Any:
    """What a command says as JSON. It fails loudly: its exit code is 0 only if all is well."""
    ended = subprocess.run(
        [sys.executable, "-m", "casque.cli", *arguments, "--json"], capture_output=True, check=True, text=True
    )
    return json.loads(ended.stdout)


async def fill(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.enqueue_many([("send", b"%d" % n) for n in range(100)])
        for job in await queue.dequeue("send", batch_size=40):
            await job.ack()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = Path(directory).as_uri()
        asyncio.run(fill(url))
        before = casque("queue", "verify", url)
        print(f"{before['layout']}: {before['jobs']} jobs, {before['segments']} segments")

        document = casque("convert", url, "--to", "document")
        print(f"{document['layout']}: {document['jobs']} jobs, the same: {document['digest'] == before['digest']}")

        log = casque("convert", url, "--to", "log")
        after = casque("queue", "verify", url)
        print(f"{log['layout']}: {log['jobs']} jobs, the same: {after['digest'] == before['digest']}")


if __name__ == "__main__":
    main()
