"""How the driver reaches a queue: itself, or through the broker that leads it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from casque.client import leading
from casque.client.opening import as_store


class Via(StrEnum):
    """The process that makes the commits."""

    AUTO = "auto"
    """The broker that leads the queue if there is one, else the driver itself."""
    EMBEDDED = "embedded"
    BROKER = "broker"


async def is_led(url: str, options: Mapping[str, str] | None) -> bool:
    store = as_store(url, options)
    try:
        return await leading.is_led(store)
    finally:
        await store.close()
