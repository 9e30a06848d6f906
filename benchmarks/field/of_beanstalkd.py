"""beanstalkd, which syncs its log before it answers. Its protocol is lines on a socket: one for each thread here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from benchmarks.field.desk import Side, main


class OfBeanstalkd(Side):
    blocks = True
    has_bulk = False

    def prepare(self) -> None:
        pass

    def open(self) -> None:
        self._of_thread = threading.local()

    def enqueue(self, payload: str) -> None:
        line = getattr(self._of_thread, "line", None)
        if line is None:
            line = self._of_thread.line = _Line(self.place)
            line.ask(f"use {self.kind}\r\n".encode(), b"USING")
        body = payload.encode()
        line.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body), b"INSERTED")

    def work(self, handle: Callable[[str], None]) -> None:
        line = _Line(self.place)
        line.ask(f"watch {self.kind}\r\n".encode(), b"WATCHING")
        while True:
            _reserved, job_id, size = line.ask(b"reserve\r\n", b"RESERVED").split()
            handle(line.body(int(size)).decode())
            line.ask(b"delete %b\r\n" % job_id, b"DELETED")


class _Line:
    def __init__(self, place: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(place)
        self._answers = self._socket.makefile("rb")

    def ask(self, question: bytes, expected: bytes) -> bytes:
        self._socket.sendall(question)
        answer = self._answers.readline()
        if not answer.startswith(expected):
            raise RuntimeError(f"beanstalkd says {answer!r}")
        return answer

    def body(self, size: int) -> bytes:
        return self._answers.read(size + 2)[:-2]


if __name__ == "__main__":
    main(OfBeanstalkd)
