"""Any object with async `read` and `write` holds a queue."""

from __future__ import annotations

from casque.storage.single import ObjectStoragePort

__all__ = ["ObjectStoragePort"]
