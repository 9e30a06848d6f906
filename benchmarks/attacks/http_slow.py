"""Slow callers: connections that never finish their headers, never finish their body, never read, or never ask."""

from __future__ import annotations

import socket
import sys

from benchmarks.attacks.http_victim import Bystander, Victim, let_pass, victim

CONNECTIONS = 200
WATCHED_S = 40.0
TRICKLE_EVERY_S = 2.0
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BEGUN = {
    "headers": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "body": POST + b"Content-Length: 9999\r\n\r\n[",
    "unread body": b"GET /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n",
    "silence": b"",
}


def main(seconds: float = WATCHED_S) -> None:
    with victim() as attacked:
        with Bystander(attacked) as bystander:
            held = {what: [_begun(attacked, said) for _ in range(CONNECTIONS)] for what, said in BEGUN.items()}
            for _ in range(int(seconds / TRICKLE_EVERY_S)):
                for what, sockets in held.items():
                    held[what] = [one for one in sockets if _trickle(one, b"" if what == "silence" else b" ")]
                let_pass(TRICKLE_EVERY_S)
        left = ", ".join(f"{what} {len(sockets)}" for what, sockets in held.items())
        print(f"slow: after {seconds:.0f} s of {CONNECTIONS} connections each are open: {left}; {bystander.told()}")


def _begun(attacked: Victim, said: bytes) -> socket.socket:
    connection = attacked.connect()
    connection.sendall(said)
    connection.setblocking(False)
    return connection


def _trickle(connection: socket.socket, byte: bytes) -> bool:
    """Say one byte more; False if the broker has closed this one."""
    try:
        while True:
            if connection.recv(65_536) == b"":
                connection.close()
                return False
    except BlockingIOError:
        pass
    except OSError:
        return False
    try:
        connection.send(byte)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
