"""A broker to be attacked over HTTP, and a bystander who asks it for its health all the while."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

PROBE_EVERY_S = 0.05
JSON = {"Content-Type": "application/json"}


class Victim:
    """`casque serve` on files, in a process of its own."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 120.0) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, JSON if raw is not None else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def rss_mb(self) -> float:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextmanager
def victim(*options: str) -> Iterator[Victim]:
    with tempfile.TemporaryDirectory(prefix="casque-attack-") as folder:
        command = [
            sys.executable,
            "-c",
            "from casque.cli import main; main()",
            "serve",
            f"file://{folder}/q",
            "--listen",
            "127.0.0.1:0",
        ]
        command += ["--http", "127.0.0.1:0", "--log-format", "json", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ.copy())
        try:
            assert process.stdout is not None
            banner = json.loads(process.stdout.readline())
            yield Victim(process.pid, int(banner["http"].rpartition(":")[2]))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


class Bystander:
    """Asks for `/healthz` on a connection of its own each time, and keeps how long each answer took."""

    def __init__(self, attacked: Victim) -> None:
        self._attacked = attacked
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.took_s: list[float] = []
        self.failed = 0
        self.rss_mb = 0.0

    def _watch(self) -> None:
        while not self._over.is_set():
            began = monotonic()
            try:
                status, _ = self._attacked.ask("GET", "/healthz", timeout_s=30)
                self.failed += status != 200
            except OSError:
                self.failed += 1
            self.took_s.append(monotonic() - began)
            self.rss_mb = max(self.rss_mb, self._attacked.rss_mb())
            self._over.wait(PROBE_EVERY_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def told(self) -> str:
        took = sorted(self.took_s)
        middle, longest = took[len(took) // 2], took[-1]
        return (
            f"healthz: median {middle * 1000:.0f} ms, longest {longest * 1000:.0f} ms, "
            f"{self.failed} of {len(took)} failed; memory at most {self.rss_mb:.0f} MB"
        )


def let_pass(seconds: float) -> None:
    sleep(seconds)
