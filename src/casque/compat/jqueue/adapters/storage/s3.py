"""One object on S3 or a compatible server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from casque.compat.jqueue.domain.errors import (
    CASConflictError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
    translated,
)
from casque.storage import cloud_single

ABSENT = ("NoSuchKey", "404")
LOST = ("PreconditionFailed", "412", "ConditionalRequestConflict")
REFUSED = ("AccessDenied", "403", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")


class S3Storage:
    """`session` is an `aioboto3.Session`, whose clients then make the requests; without one casque's own client does,
    and aioboto3 is not needed. The first write is conditional too."""

    failures_are_definite = True

    def __init__(
        self,
        bucket: str,
        key: str,
        session: Any = None,
        region_name: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        self.bucket = bucket
        self.key = key
        self.session = session
        self.region_name = region_name
        self.endpoint_url = endpoint_url
        self._object = (
            cloud_single.S3Storage(bucket, key, region_name=region_name, endpoint_url=endpoint_url)
            if session is None
            else _SessionObject(session, bucket, key, {"region_name": region_name, "endpoint_url": endpoint_url})
        )

    async def read(self) -> tuple[bytes, str | None]:
        with translated():
            return await self._object.read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with translated():
            return await self._object.write(content, if_match)

    def __repr__(self) -> str:
        return f"S3Storage(bucket={self.bucket!r}, key={self.key!r})"


class _SessionObject:
    """One key, through the clients of the caller's own session."""

    def __init__(self, session: Any, bucket: str, key: str, options: dict[str, str | None]) -> None:
        self._session = session
        self._name = {"Bucket": bucket, "Key": key}
        self._options = {name: value for name, value in options.items() if value}

    async def read(self) -> tuple[bytes, str | None]:
        try:
            async with self._client() as s3:
                found = await s3.get_object(**self._name)
                return await found["Body"].read(), found["ETag"]
        except Exception as error:
            if _s3_error_code(error) in ABSENT:
                return b"", None
            raise self._failure("read", error) from error

    async def write(self, content: bytes, if_match: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": if_match}
        try:
            async with self._client() as s3:
                put = await s3.put_object(**self._name, Body=content, ContentType="application/json", **condition)
                return str(put["ETag"])
        except Exception as error:
            # An object that is gone cannot be the one that was read.
            if _s3_error_code(error) in LOST or (if_match is not None and _s3_error_code(error) in ABSENT):
                raise CASConflictError(f"another writer was first: {self._where()} is not at {if_match}") from error
            failure = self._failure("write", error)
            if isinstance(failure, StoreAccessError):
                raise failure from error
            message = f"the write of {self._where()} may or may not have landed"
            raise UnknownOutcomeError(message, error) from error

    def _client(self) -> AbstractAsyncContextManager[Any]:
        from botocore.config import Config

        # A retry after a lost answer would meet its own write and report a conflict. The queue retries by itself.
        once = Config(retries={"total_max_attempts": 1})
        client: AbstractAsyncContextManager[Any] = self._session.client("s3", config=once, **self._options)
        return client

    def _failure(self, action: str, error: Exception) -> StorageError:
        kind = StoreAccessError if _s3_error_code(error) in REFUSED else StorageError
        return kind(f"could not {action} {self._where()}", error)

    def _where(self) -> str:
        return f"s3://{self._name['Bucket']}/{self._name['Key']}"


def _s3_error_code(error: Exception) -> str:
    """S3's own name for an error of botocore's; empty for any other."""
    response = getattr(error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    return str(details.get("Code", "")) if isinstance(details, dict) else ""
