"""Readers of the feed that never read: 30 connections to `GET /v1/events` from the beginning of a log of large jobs."""

from __future__ import annotations

import base64
import sys

from benchmarks.attacks.http_victim import Bystander, let_pass, victim

READERS = 30
JOBS = 400
PAYLOAD = 180 * 1024
WATCHED_S = 20.0


def main(seconds: float = WATCHED_S) -> None:
    with victim() as attacked:
        payload = base64.b64encode(bytes(PAYLOAD)).decode()
        for _ in range(JOBS // 20):
            attacked.ask("POST", "/v1/jobs", [{"entrypoint": "a", "payload": payload}] * 20)
        before = attacked.rss_mb()
        sockets = []
        with Bystander(attacked) as bystander:
            for _ in range(READERS):
                reader = attacked.connect()
                reader.sendall(b"GET /v1/events?from_position=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                sockets.append(reader)
            let_pass(seconds)
        print(f"readers: {READERS} that never read, {before:.0f} MB before; {bystander.told()}")
        for reader in sockets:
            reader.close()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
