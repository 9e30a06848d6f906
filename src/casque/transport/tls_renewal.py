"""TLS from files that are renewed while the broker runs.

The files are looked at when a client connects, at most once a second. New ones serve the connections that begin then;
those that exist stay as they are. Files that cannot be used leave the certificate in place that is in use.
"""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

from casque.clock import Clock, SystemClock
from casque.errors import InvalidInputError
from casque.telemetry import logger
from casque.transport.tls import Tls, TlsFiles

LOOK_AGAIN_MS = 1000

_log = logger("transport.tls")

Version = tuple[tuple[int, int, int] | None, ...]
"""For each file: when it changed, its size and its inode; None if it is not there."""


class RenewedTls:
    """Satisfies `ServerTls`. gRPC asks from threads of its own.

    Raises:
        InvalidInputError: the files cannot be used. Raised only by the constructor.
    """

    def __init__(self, files: TlsFiles, *, clock: Clock | None = None) -> None:
        self._files = files
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._version = self._version_now()
        self._tls = files.load(clock=self._clock)
        self._looked_ms = self._clock.monotonic_ms()
        self.client_ca = self._tls.client_ca
        self.context = self._tls.context
        """For HTTP: hands each new connection to the context of the latest files."""
        self.context.sni_callback = self._hand_over

    def __repr__(self) -> str:
        return f"RenewedTls({self._files.cert}, mutual={self.client_ca is not None})"

    def current(self) -> Tls:
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._looked_ms >= LOOK_AGAIN_MS:
                self._looked_ms = now_ms
                self._look()
            return self._tls

    def _look(self) -> None:
        version = self._version_now()
        if version == self._version:
            return
        try:
            tls = self._files.load(clock=self._clock)
        except InvalidInputError as error:
            self._version = version  # one line in the log for each change
            _log.error("the certificate in use stays, because the new one cannot be used: %s", error)
            return
        if self._version_now() != version:
            return  # they are being written: the certificate may be new and its key old
        self._version, self._tls = version, tls
        _log.info("new connections get the certificate that is in %s now", self._files.cert)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.current().context

    def _version_now(self) -> Version:
        paths = (self._files.cert, self._files.key, self._files.client_ca)
        return tuple(_version_of(path) for path in paths if path is not None)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
