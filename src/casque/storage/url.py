"""Stores by URL, which fits into a setting, a command line or a child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from casque.errors import InvalidInputError
from casque.storage.adapted import SingleObjectStore
from casque.storage.local import LocalStore
from casque.storage.memory import MemoryStore
from casque.storage.port import Store
from casque.storage.single import ObjectStoragePort

CLOUD_SCHEMES = frozenset({"s3", "gs", "az"})
BROKER_SCHEMES = frozenset({"grpc", "grpcs", "http", "https"})


def open_store(url: str, *, options: Mapping[str, str] | None = None) -> Store:
    """Open the store that `url` names. Nothing is read or written yet.

    `memory://name` (the same store for the same name in one process, a private one without a name),
    `file:///absolute/path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`. Special
    characters are percent-encoded. A cloud store's options (endpoint, region, keys) come from the URL's query or from
    `options`, which take precedence and are the place for secrets: URLs end up in logs.

    >>> type(open_store("memory://orders")).__name__
    'MemoryStore'

    Raises:
        InvalidInputError: not such a URL; the message says what to write instead.
    """
    parts = urlsplit(url)
    if parts.scheme in CLOUD_SCHEMES:
        return _open_cloud(url, parts, options or {})
    if parts.scheme not in ("memory", "file"):
        raise InvalidInputError(_unknown_scheme(url, parts.scheme))
    if options:
        raise InvalidInputError(f"{parts.scheme}:// takes no options, got {', '.join(sorted(options))}")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{url!r}: write ? as %3F and # as %23")
    return _open_memory(parts) if parts.scheme == "memory" else LocalStore(_local_path(url, parts))


def as_store(storage: Any, options: Mapping[str, str] | None = None) -> Store:
    """A store from a URL, from an object with `read` and `write`, or from a store."""
    if isinstance(storage, str):
        return open_store(storage, options=options)
    if isinstance(storage, Store):
        return storage
    if isinstance(storage, ObjectStoragePort):
        return SingleObjectStore(storage)
    raise InvalidInputError(
        f"storage must be a URL, a store, or an object with async read() and write(), not {type(storage).__name__}"
    )


def is_address(url: Any) -> bool:
    """True if this names brokers and not a store."""
    return isinstance(url, str) and urlsplit(url).scheme in BROKER_SCHEMES


def _open_memory(parts: SplitResult) -> MemoryStore:
    name = unquote(parts.netloc + parts.path)
    return MemoryStore.named(name) if name else MemoryStore()


def _local_path(url: str, parts: SplitResult) -> Path:
    # A relative path would name a different queue in each working directory.
    relative = unquote(parts.netloc + parts.path)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        fix = Path(relative or ".").absolute().resolve().as_uri()
        raise InvalidInputError(f"{url!r}: a file URL needs an absolute path, for example {fix}")
    path = unquote(parts.path)
    if "\0" in path:
        raise InvalidInputError(f"{url!r}: a path cannot contain a NUL byte")
    return Path(path)


def _open_cloud(url: str, parts: SplitResult, options: Mapping[str, str]) -> Store:
    if not parts.netloc:
        raise InvalidInputError(f"{url!r} names no bucket: write {parts.scheme}://bucket/prefix")
    if parts.fragment:
        raise InvalidInputError(f"{url!r}: write # as %23")
    given = dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(options)
    # Imported here, so that a queue on local files does not load the cloud client.
    from casque.storage.cloud import open_cloud

    return open_cloud(parts.scheme, parts.netloc, unquote(parts.path).strip("/"), given)


def _unknown_scheme(url: str, scheme: str) -> str:
    known = "memory://, file://, s3://, gs:// or az://"
    if is_address(url):
        return f"{url!r} is the address of a broker, and not a store: use {known}"
    if scheme:
        return f"{url!r}: no store speaks {scheme}://; use {known}, or a broker's grpc:// or http://"
    return f"{url!r} is not a store URL; use {known} (for this path: {Path(url).absolute().as_uri()})"
