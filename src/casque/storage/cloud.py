"""S3, Google Cloud Storage and Azure through obstore.

Each store has two clients. The one for conditional writes never retries: a repeated PUT whose first answer was lost
comes back as "already exists", and our own success would look like a lost race. The other one, for reads, lists and
deletes, retries a little.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions as failures
from obstore.store import AzureStore, GCSStore, S3Store

from casque.errors import InvalidInputError, StorageError, StoreAccessError, UnsafeStoreError
from casque.storage.aws_profiles import apply_profile
from casque.storage.cloud_options import Backend, read_options
from casque.storage.port import LOST, MISSING, UNCHANGED, Outcome, Read, Stored, Unknown, Won

_RAISE_THE_TRUTH = {"max_retries": 0}
_RETRY_A_LITTLE = {
    "max_retries": 4,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    "retry_timeout": timedelta(seconds=15),
}

_REFUSED = (
    failures.PermissionDeniedError,
    failures.UnauthenticatedError,
    failures.NotSupportedError,
    failures.UnknownConfigurationKeyError,
    NotImplementedError,
)
# Refusals that obstore raises as plain failures: every refusal of a listing, an expired token (a 400 on S3), and a
# client without credentials, which asks the machine's metadata service and finds none.
_REFUSED_IN_WORDS = re.compile(
    r"status code: 40[13]"
    r"|<Code>(ExpiredToken|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|RequestTimeTooSkewed)</Code>"
    r"|169\.254\.169\.254|metadata\.google\.internal"
)
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|metadata\.google\.internal")
_NO_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to the name of a profile in ~/.aws, "
    "or the options access_key_id and secret_access_key",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or the option application_credentials, to the file of a key",
    "az": "Set AZURE_STORAGE_ACCOUNT_KEY, or the option account_key",
}
_NOT_FOUND = FileNotFoundError  # obstore has a NotFoundError, and raises Python's own
_NOT_FOUND_IN_WORDS = "status code: 404"
_LOST_ON_CREATE = (failures.AlreadyExistsError, failures.PreconditionError)
_LOST_ON_REPLACE = (*_LOST_ON_CREATE, _NOT_FOUND)


def open_cloud(scheme: str, bucket: str, prefix: str, options: Mapping[str, str]) -> CloudStore:
    """Open a store from the parts of a URL. Nothing is sent before the first operation.

    Raises:
        InvalidInputError: the options do not make a store.
    """
    return CloudStore(scheme, bucket, prefix, options=options)


class CloudStore:
    """Objects in one bucket, below one prefix.

    >>> CloudStore("s3", "jobs", "emails", options={"region": "eu-west-1"})
    CloudStore('s3://jobs/emails')
    """

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str = "",
        *,
        options: Mapping[str, str] | None = None,
        credentials: Any = None,
    ) -> None:
        if not bucket:
            raise InvalidInputError(f"a {scheme}:// store needs the name of a bucket")
        self._scheme = scheme
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._options = dict(options or {})
        self._credentials = credentials
        self._backend = read_options(scheme, self._options)
        # Google's token is the generation, which obstore calls the version.
        self._by_generation = self._backend.kind == "gs"
        self._clients: tuple[int, _Clients] | None = None
        self._bucket_was_seen = False

    def locate(self, key: str) -> str:
        return f"{self._scheme}://{self._bucket}/{self._path(key)}"

    async def place(self, *, make: bool) -> str:  # noqa: ARG002
        # Without the endpoint: the same server has different names inside and outside of its network.
        return f"{self._scheme}://{self._bucket}/{self._prefix}"

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        clients, path = self._use(), self._path(key)
        try:
            if unless is None or not self._is_token(unless):
                result = await obstore.get_async(clients.patient, path)
            elif not self._by_generation:
                result = await obstore.get_async(clients.patient, path, options={"if_none_match": unless})
            else:
                # GCS compares entity tags here, but our tokens on GCS are generations.
                meta = await obstore.head_async(clients.patient, path)
                if meta["version"] == unless:
                    return UNCHANGED
                result = await obstore.get_async(clients.patient, path)
            body = bytes(await result.bytes_async())
        except failures.NotModifiedError:
            return UNCHANGED
        except _NOT_FOUND:
            await self._need_bucket()
            return MISSING
        except Exception as error:
            raise self._translate(error, f"read {key!r}") from error
        self._bucket_was_seen = True
        token = self._token_of(result.meta)
        if token is None:
            raise UnsafeStoreError(f"{self!r} gives no version token with {key!r}; run `casque doctor` on it")
        # A server that ignores the condition sends the whole object again.
        return UNCHANGED if token == unless else Stored(body=body, etag=token)

    async def create(self, key: str, body: bytes) -> Outcome:
        return await self._write(key, body, mode="create", lost=_LOST_ON_CREATE)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        if not self._is_token(expected):
            return LOST
        mode = {"version" if self._by_generation else "e_tag": expected}
        return await self._write(key, body, mode=mode, lost=_LOST_ON_REPLACE)

    async def _write(self, key: str, body: bytes, *, mode: Any, lost: tuple[type[Exception], ...]) -> Outcome:
        clients, path = self._use(), self._path(key)
        try:
            result = await obstore.put_async(clients.truthful, path, body, mode=mode)
        except lost:
            await self._need_bucket()
            return LOST
        except Exception as error:
            if isinstance(error, _NOT_FOUND) or _is_refusal(error):
                raise self._translate(error, f"write {key!r}") from error
            return Unknown(cause=error)
        self._bucket_was_seen = True
        token = self._token_of(result)
        if token is None:
            return Unknown(cause=UnsafeStoreError(f"{self!r} gave no version token for {key!r}"))
        return Won(etag=token)

    async def delete(self, key: str) -> None:
        clients, path = self._use(), self._path(key)
        try:
            await obstore.delete_async(clients.patient, path)
        except _NOT_FOUND:
            await self._need_bucket()
        except Exception as error:
            raise self._translate(error, f"delete {key!r}") from error

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        # Sorted and filtered here: S3 Express lists in no order, some servers ignore the offset, and obstore matches
        # whole path segments only.
        for key in sorted(await self._list(prefix, after)):
            yield key

    async def _list(self, prefix: str, after: str | None) -> Sequence[str]:
        clients = self._use()
        start = len(self._prefix) + 1 if self._prefix else 0
        folder = f"{self._prefix}/{prefix.rpartition('/')[0]}".strip("/")
        offset = _before(f"{self._prefix}/{after}".strip("/")) if after else None
        keys = []
        try:
            async for page in obstore.list(clients.patient, folder or None, offset=offset):
                for meta in page:
                    key = meta["path"][start:]
                    if key.startswith(prefix) and (after is None or key > after):
                        keys.append(key)
        except Exception as error:
            raise self._translate(error, f"list {prefix!r}") from error
        self._bucket_was_seen = True
        return keys

    async def close(self) -> None:
        """Drop the connections; obstore closes them once nothing refers to them. The next call opens new ones."""
        self._clients = None

    def __repr__(self) -> str:
        place = f"{self._scheme}://{self._bucket}/{self._prefix}".rstrip("/")
        at = f", endpoint={self._backend.endpoint!r}" if self._backend.endpoint else ""
        return f"CloudStore({place!r}{at})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Static keys in the options are pickled in clear text: prefer the environment or roles on the other side.
        return _rebuild, (self._scheme, self._bucket, self._prefix, self._options, self._credentials)

    def _is_token(self, text: str) -> bool:
        # Some texts name no version but mean something to the server: `If-Match: *` matches any version, and
        # generation 0 means "no object", which would turn a replace into a create.
        return text.isdecimal() and int(text) > 0 if self._by_generation else text != "*"

    def _token_of(self, meta: obstore.ObjectMeta | obstore.PutResult) -> str | None:
        return meta["version"] if self._by_generation else meta["e_tag"]

    def _path(self, key: str) -> str:
        # obstore silently drops an empty segment, which would make two keys one object.
        if any(segment in ("", ".", "..") or "\0" in segment for segment in key.split("/")):
            raise InvalidInputError(f"{key!r} is not a key: segments must not be empty, '.' or '..'")
        return f"{self._prefix}/{key}" if self._prefix else key

    def _use(self) -> _Clients:
        pid = _enter_process()
        if self._clients is None or self._clients[0] != pid:
            self._clients = (pid, _Clients(self._backend, self._bucket, self._credentials))
        return self._clients[1]

    async def _need_bucket(self) -> None:
        """Check that the bucket exists before "not found" is believed: a missing bucket gives the same answer."""
        if not self._bucket_was_seen:
            await self._list("casque-asks-whether-the-bucket-exists/", None)

    def _translate(self, error: Exception, action: str) -> StorageError:
        if isinstance(error, _NOT_FOUND) or _NOT_FOUND_IN_WORDS in str(error):
            text = f"there is no bucket {self._bucket!r} at {self!r}: create it first"
            return StoreAccessError(text, cause=error)
        text = f"{self!r} could not {action}: {_first_line(error)}"
        if not _is_refusal(error):
            return StorageError(text, cause=error)
        if (hint := _NO_CREDENTIALS.get(self._backend.kind)) and _METADATA_SERVICE.search(str(error)):
            text = f"{self!r} could not {action}: no credentials were found, and this machine has no role. {hint}"
            return StoreAccessError(text, cause=error)
        return StoreAccessError(f"{text}. Check the credentials and their rights on the bucket", cause=error)


class _Clients:
    """The two obstore clients of one process."""

    __slots__ = ("patient", "truthful")

    def __init__(self, backend: Backend, bucket: str, credentials: Any) -> None:
        make: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[backend.kind]
        arguments: dict[str, Any] = {"config": backend.config}
        if credentials is not None:
            arguments["credential_provider"] = credentials
        elif backend.kind == "s3":
            arguments = apply_profile(backend.config)

        def build(retry: Mapping[str, Any]) -> Any:
            return make(bucket, client_options=backend.client, retry_config=retry, **arguments)

        try:
            self.truthful = build(_RAISE_THE_TRUTH)
            self.patient = build(_RETRY_A_LITTLE)
        except (failures.BaseError, ValueError, TypeError) as error:
            raise InvalidInputError(f"the options do not make a {backend.kind}:// store: {error}") from error


def _rebuild(scheme: str, bucket: str, prefix: str, options: dict[str, str], credentials: Any) -> CloudStore:
    return CloudStore(scheme, bucket, prefix, options=options, credentials=credentials)


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, _REFUSED) or _REFUSED_IN_WORDS.search(str(error)) is not None


def _first_line(error: BaseException) -> str:
    # obstore adds a page of debugging output, and a URL's query can hold a signature.
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", lines[0]).partition(": <?xml")[0]
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return f"{line} ({code[1]})" if code else line


_runtime_pid: int | None = None


def _enter_process() -> int:
    """Record that this process runs obstore's threads.

    Raises:
        StoreAccessError: a parent process ran them and then forked; in the child every call would hang forever.
    """
    global _runtime_pid  # noqa: PLW0603
    pid = os.getpid()
    if _runtime_pid is None:
        _runtime_pid = pid
        # Without this pause its threads may still call into an interpreter that is shutting down: about every tenth
        # process then dies of SIGABRT after its work is done.
        atexit.register(threading.Event().wait, 0.05)
    elif _runtime_pid != pid:
        raise StoreAccessError(
            "this process was forked from one that had already used cloud storage, whose threads do not "
            "survive a fork: start processes with 'spawn' or 'forkserver'"
        )
    return pid


_UP_TO_SLASH = "".join(map(chr, range(ord("/") + 1)))
"""Characters that sort before what is in a folder, or with it."""


def _before(key: str) -> str | None:
    """A little before a key. SeaweedFS keeps folders, and leaves out all of a folder that an offset names; here it can
    only name one whose keys are smaller.

    >>> _before("archive/2026-02-15T07"), _before("archive/5")
    ('archive/2026-02-15T0', 'archiv')
    """
    before = key
    while before == key or before[-1:] in _UP_TO_SLASH:
        before = before.rstrip(_UP_TO_SLASH)[:-1]
        if not before:
            return None
    return before
