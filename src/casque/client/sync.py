"""The same queue without asyncio: every call blocks until it is durable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from casque.client.blocking import SyncJob
from casque.client.connecting import ClientTlsFiles
from casque.client.queue import Queue
from casque.client.sync_verbs import SyncVerbs
from casque.settings import SettingsChanges

__all__ = ["SyncJob", "SyncQueue"]

T = TypeVar("T")


class SyncQueue(SyncVerbs[T]):
    """`Queue` without `await`.

    >>> from casque import SyncQueue
    >>> with SyncQueue.open("memory://sync-example") as q:
    ...     _ = q.enqueue("send", b"hello")
    ...     for job in q.dequeue("send", wait=5.0):
    ...         print(job.payload)
    ...         job.ack()
    b'hello'
    """

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> SyncQueue[bytes]: ...

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        type: type[T],
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> SyncQueue[T]: ...

    @classmethod
    def open(cls, url: Any, **everything: Any) -> SyncQueue[Any]:
        """As `Queue.open`."""
        return SyncQueue(Queue.open(url, **everything))
