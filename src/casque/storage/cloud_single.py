"""One object on S3 or Google Cloud Storage, with `read` and `write`.

For queues that name a bucket and a key instead of a URL. The caller's SDK session or client is used: a session provides
credentials for our own client, because the SDK's asynchronous one repeats a PUT when a connection drops; a Google
client makes the requests itself, in a thread, with its retries turned off.
"""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from typing import Any

from casque.clock import SystemClock
from casque.errors import (
    CASConflictError,
    InvalidInputError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
)
from casque.storage.cloud import CloudStore
from casque.storage.port import Stored
from casque.storage.single import written

_CREDENTIALS_KEPT_SECONDS = 300
"""botocore renews credentials ten minutes before they expire, so those it returns last at least this long."""
_READS_MAX = 10


class _OneObject:
    """One key of a cloud store."""

    failures_are_definite = True

    def __init__(self, store: CloudStore, key: str) -> None:
        self._store = store
        self._key = key

    async def read(self) -> tuple[bytes, str | None]:
        found = await self._store.get(self._key)
        return (found.body, found.etag) if isinstance(found, Stored) else (b"", None)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is None:
            outcome = await self._store.create(self._key, content)
        else:
            outcome = await self._store.replace(self._key, content, expected=if_match)
        return written(outcome, if_match)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r}, {self._key!r})"


class S3Storage(_OneObject):
    """One object on S3 or a compatible server.

    `session` is a boto3 or aioboto3 session; without one, credentials come from the environment or the
    machine's role. The token is the object's ETag.

    >>> S3Storage(bucket="my-bucket", key="queues/jobs.json", region_name="eu-central-1")
    S3Storage(CloudStore('s3://my-bucket'), 'queues/jobs.json')
    """

    def __init__(
        self,
        bucket: str,
        key: str,
        *,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        session: Any = None,
    ) -> None:
        region = region_name or getattr(session, "region_name", None)
        options = {"region": region, "endpoint": endpoint_url}
        credentials = None if session is None else _SessionCredentials(session)
        given = {name: value for name, value in options.items() if value is not None}
        super().__init__(CloudStore("s3", bucket, options=given, credentials=credentials), key)


class GCSStorage:
    """One object on Google Cloud Storage.

    `client` is a `google.cloud.storage.Client`; without one, credentials are looked up as Google's tools do.
    The token is the object's generation.

    >>> GCSStorage(bucket_name="my-bucket", blob_name="queues/jobs.json")
    GCSStorage('my-bucket', 'queues/jobs.json')
    """

    failures_are_definite = True

    def __init__(self, bucket_name: str, blob_name: str, *, client: Any = None) -> None:
        if not bucket_name or not blob_name:
            raise InvalidInputError("GCSStorage needs a bucket_name and a blob_name")
        self._name = (bucket_name, blob_name)
        self._inner: _OneObject | _Blob
        if client is None:
            self._inner = _OneObject(CloudStore("gs", bucket_name), blob_name)
        else:
            self._inner = _Blob(client, bucket_name, blob_name)

    async def read(self) -> tuple[bytes, str | None]:
        return await self._inner.read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await self._inner.write(content, if_match)

    def __repr__(self) -> str:
        return f"GCSStorage({self._name[0]!r}, {self._name[1]!r})"


class _SessionCredentials:
    """Asks a boto3 or aioboto3 session for credentials whenever our client needs new ones."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._credentials: Any = None

    async def __call__(self) -> dict[str, Any]:
        if self._credentials is None:
            self._credentials = await _settled(self._session.get_credentials())
        if self._credentials is None:
            raise StoreAccessError("the session that was passed in has no AWS credentials")
        frozen = await _settled(self._credentials.get_frozen_credentials())
        expires = SystemClock().wall_ms() / 1000 + _CREDENTIALS_KEPT_SECONDS
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp(expires, UTC),
        }


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Blob:
    """One blob through Google's own synchronous client."""

    def __init__(self, client: Any, bucket_name: str, blob_name: str) -> None:
        self._client = client
        self._bucket_name = bucket_name
        self._blob_name = blob_name

    async def read(self) -> tuple[bytes, str | None]:
        try:
            return await asyncio.to_thread(self._read)
        except StorageError:
            raise
        except Exception as error:
            raise self._translate(error, "read") from error

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None and not (if_match.isdecimal() and int(if_match) > 0):
            raise CASConflictError(f"{if_match!r} is no generation, so the blob cannot be at it")
        try:
            return await asyncio.to_thread(self._write, content, int(if_match or 0))
        except Exception as error:
            if _status(error) == 412:
                raise CASConflictError(f"another writer was first: the blob is no longer at {if_match}") from error
            failure = self._translate(error, "write")
            if isinstance(failure, StoreAccessError):
                raise failure from error
            raise UnknownOutcomeError(f"the write may or may not have landed: {error}") from error

    def _read(self) -> tuple[bytes, str | None]:
        # A download does not report its generation: ask for it first, then require it.
        for _ in range(_READS_MAX):
            try:
                blob = self._client.bucket(self._bucket_name).blob(self._blob_name)
                blob.reload(retry=None)
                content = blob.download_as_bytes(if_generation_match=blob.generation, retry=None)
            except Exception as error:
                if _status(error) == 404:
                    if not self._bucket_exists():
                        raise self._no_bucket(error) from error
                    return b"", None
                if _status(error) != 412:
                    raise
            else:
                return content, str(blob.generation)
        raise StorageError(f"{self._blob_name!r} changed under each of {_READS_MAX} reads")

    def _write(self, content: bytes, generation: int) -> str:
        blob = self._client.bucket(self._bucket_name).blob(self._blob_name)
        # A retry after a lost answer would meet our own write and report it as a conflict.
        blob.upload_from_string(content, content_type="application/json", if_generation_match=generation, retry=None)
        return str(blob.generation)

    def _bucket_exists(self) -> bool:
        # Lists instead of reading the bucket's metadata, which few clients have the right to do.
        try:
            list(self._client.list_blobs(self._bucket_name, max_results=1, retry=None))
        except Exception as error:
            if _status(error) == 404:
                return False
            raise
        return True

    def _no_bucket(self, error: BaseException) -> StoreAccessError:
        return StoreAccessError(f"there is no bucket {self._bucket_name!r}: create it first", cause=error)

    def _translate(self, error: Exception, action: str) -> StorageError:
        where = f"gs://{self._bucket_name}/{self._blob_name}"
        if _status(error) == 404:
            return self._no_bucket(error)
        if _status(error) in (401, 403) or type(error).__module__.startswith("google.auth"):
            return StoreAccessError(f"{where}: refused to {action}: {error}", cause=error)
        return StorageError(f"{where}: could not {action}: {error}", cause=error)


def _status(error: BaseException) -> int | None:
    """The HTTP status of one of Google's exceptions, without importing their packages."""
    code = getattr(error, "code", None)
    return int(code) if isinstance(code, int) else None
