"""A broker to be attacked over gRPC, and a bystander with a token who enqueues and acknowledges all the while."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from casque.errors import CasqueError
from casque.transport import tokenfile
from casque.transport.grpc.client import GrpcService
from casque.transport.scopes import Scope
from casque.types import JobSpec

PROBE_EVERY_S = 0.02
GIVEN_UP_S = 10.0


class Victim:
    """`casque serve` on files with tokens, in a process of its own."""

    def __init__(self, pid: int, port: int, token: str) -> None:
        self.pid = pid
        self.address = f"127.0.0.1:{port}"
        self.token = token

    def rss_mb(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextmanager
def victim(*options: str) -> Iterator[Victim]:
    with tempfile.TemporaryDirectory(prefix="casque-attack-") as folder:
        tokens = Path(folder) / "tokens.json"
        token = tokenfile.add(tokens, name="bystander", scopes=[Scope.ADMIN], created=datetime.now(UTC))
        command = [sys.executable, "-c", "from casque.cli import main; main()", "serve", f"file://{folder}/q"]
        command += ["--listen", "127.0.0.1:0", "--no-http", "--tokens", str(tokens), "--log-format", "json", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ.copy())
        try:
            assert process.stdout is not None
            banner = json.loads(process.stdout.readline())
            yield Victim(process.pid, int(banner["grpc"].rpartition(":")[2]), token)
        finally:
            process.kill()
            process.wait()


class Bystander:
    """Opens a connection, enqueues a job and closes it, again and again: as a short-lived producer would. In a process
    of its own, so that it notices the broker's trouble and not the attacker's."""

    def __init__(self, attacked: Victim) -> None:
        self._attacked = attacked
        self._found: dict[str, float] = {}

    @contextmanager
    def watching(self) -> Iterator[Bystander]:
        command = [sys.executable, "-m", "benchmarks.attacks.grpc_victim", self._attacked.address, self._attacked.token]
        process = subprocess.Popen(
            [*command, str(self._attacked.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ.copy()
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        try:
            yield self
        finally:
            said, _ = process.communicate(b"enough")
            self._found = json.loads(said)

    def noticed(self) -> str:
        return (
            "bystander: median {median:.0f} ms, longest {longest:.0f} ms, {failed:.0f} of {enqueues:.0f} enqueues "
            "failed; memory of the broker at most {rss_mb:.0f} MB".format(**self._found)
        )


async def watch(attacked: Victim) -> dict[str, float]:
    """Until standard input ends."""
    took_ms: list[float] = []
    failed, rss_mb = 0, 0.0
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print("begun", flush=True)
    while not over.done():
        began = time.monotonic()
        service = GrpcService(attacked.address, token=attacked.token, call_s=GIVEN_UP_S)
        try:
            await service.enqueue([JobSpec(f"bystander {len(took_ms)}", "bystander", b"")])
        except CasqueError:
            failed += 1
        finally:
            await service.close()
        took_ms.append((time.monotonic() - began) * 1000)
        rss_mb = max(rss_mb, attacked.rss_mb())
        await asyncio.sleep(PROBE_EVERY_S)
    took_ms.sort()
    return {
        "median": took_ms[len(took_ms) // 2],
        "longest": took_ms[-1],
        "failed": failed,
        "enqueues": len(took_ms),
        "rss_mb": rss_mb,
    }


if __name__ == "__main__":
    address, token, pid = sys.argv[1:]
    print(json.dumps(asyncio.run(watch(Victim(int(pid), int(address.rpartition(":")[2]), token)))))
