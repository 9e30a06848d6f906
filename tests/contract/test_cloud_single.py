"""`S3Storage` and `GCSStorage` with and without the SDKs' own sessions and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from casque.clock import new_nonce, system_random
from casque.errors import CASConflictError, StorageError, StoreAccessError, UnknownOutcomeError
from casque.storage.cloud_single import GCSStorage, S3Storage
from casque.storage.single import ObjectStoragePort
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Server


@pytest.fixture
def key() -> str:
    return f"queues/{new_nonce(system_random())}.json"


@pytest.fixture
def aws_environment(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.options["secret_access_key"])


def _aioboto3(server: Server, **more: str) -> Any:
    import aioboto3

    return aioboto3.Session(**_keys(server), **more)


def _boto3(server: Server, **more: str) -> Any:
    import boto3

    return boto3.Session(**_keys(server), **more)


def _keys(server: Server) -> dict[str, str]:
    options = server.options
    return {
        "aws_access_key_id": options["access_key_id"],
        "aws_secret_access_key": options["secret_access_key"],
    }


@pytest.fixture
def google_client(gcs_server: Server) -> Iterator[Any]:
    yield from _google_client(gcs_server.endpoint)


def _google_client(endpoint: str) -> Iterator[Any]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]
    options = {"api_endpoint": endpoint}
    client = storage.Client(project="test", credentials=nobody, client_options=options)
    yield client
    client.close()


async def _check(one: ObjectStoragePort, other: ObjectStoragePort) -> None:
    assert await one.read() == (b"", None)
    etag = await one.write(b"first")
    assert await other.read() == (b"first", etag)

    with pytest.raises(CASConflictError):
        await other.write(b"also first")
    newer = await other.write(b"second", if_match=etag)
    with pytest.raises(CASConflictError):
        await one.write(b"third", if_match=etag)

    assert await one.read() == (b"second", newer)


@pytest.mark.usefixtures("aws_environment")
async def test_s3_with_credentials_from_the_environment(s3_server: Server, key: str) -> None:
    def make() -> S3Storage:
        return S3Storage(bucket=s3_server.bucket, key=key, endpoint_url=s3_server.endpoint, region_name="us-east-1")

    await _check(make(), make())


@pytest.mark.usefixtures("aws_environment")
async def test_s3_with_everything_from_the_environment(
    s3_server: Server, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    await _check(S3Storage(s3_server.bucket, key), S3Storage(s3_server.bucket, key))


@pytest.mark.usefixtures("aws_environment")
async def test_an_endpoint_that_is_passed_in_beats_the_environment(
    s3_server: Server, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    storage = S3Storage(s3_server.bucket, key, endpoint_url=s3_server.endpoint)

    assert await storage.read() == (b"", None)


@pytest.mark.parametrize("make_session", [_aioboto3, _boto3], ids=["aioboto3", "boto3"])
async def test_s3_with_the_credentials_of_a_session(s3_server: Server, key: str, make_session: Any) -> None:
    session = make_session(s3_server, region_name="us-east-1")

    def make() -> S3Storage:
        return S3Storage(s3_server.bucket, key, endpoint_url=s3_server.endpoint, session=session)

    await _check(make(), make())


@pytest.mark.parametrize("make_session", [_aioboto3, _boto3], ids=["aioboto3", "boto3"])
async def test_a_session_with_wrong_keys_is_refused(s3_server: Server, key: str, make_session: Any) -> None:
    wrong = Server("s3", s3_server.endpoint, {**s3_server.options, "secret_access_key": "wrong"})
    storage = S3Storage(s3_server.bucket, key, endpoint_url=s3_server.endpoint, session=make_session(wrong))

    with pytest.raises(StoreAccessError) as caught:
        await storage.write(b"body")

    assert caught.value.cause is not None


async def test_two_first_writes_at_once_leave_one_winner(s3_server: Server, key: str) -> None:
    session = _boto3(s3_server)
    storages = [S3Storage(s3_server.bucket, key, endpoint_url=s3_server.endpoint, session=session) for _ in range(8)]

    results = await asyncio.gather(
        *(storage.write(b"writer %d" % n) for n, storage in enumerate(storages)), return_exceptions=True
    )

    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, CASConflictError) for result in results) == 7


async def test_an_s3_write_whose_answer_is_lost_is_reported_as_unknown(s3_server: Server, key: str) -> None:
    async with Proxy(s3_server.endpoint) as proxy:
        storage = S3Storage(s3_server.bucket, key, endpoint_url=proxy.endpoint, session=_boto3(s3_server))
        proxy.inject(Fault.DROP_AFTER, methods={"PUT"}, times=1)

        with pytest.raises(UnknownOutcomeError):
            await storage.write(b"body")

        assert (await storage.read())[0] == b"body"
        assert proxy.requests["PUT"] == 1


async def test_gcs_with_a_client(gcs_server: Server, google_client: Any, key: str) -> None:
    def make() -> GCSStorage:
        return GCSStorage(bucket_name=gcs_server.bucket, blob_name=key, client=google_client)

    await _check(make(), make())


async def test_gcs_refuses_what_is_no_generation(gcs_server: Server, google_client: Any, key: str) -> None:
    storage = GCSStorage(gcs_server.bucket, key, client=google_client)

    for token in ("0", "*", "x"):
        with pytest.raises(CASConflictError):
            await storage.write(b"body", if_match=token)

    assert await storage.read() == (b"", None)


async def test_gcs_with_a_client_names_a_missing_bucket(google_client: Any, key: str) -> None:
    storage = GCSStorage("absent-bucket", key, client=google_client)

    with pytest.raises(StoreAccessError, match="absent-bucket"):
        await storage.read()
    with pytest.raises(StoreAccessError, match="absent-bucket"):
        await storage.write(b"body")


@pytest.mark.parametrize("fault", [Fault.DROP_AFTER, Fault.UNAVAILABLE])
async def test_a_gcs_write_without_an_answer_is_unknown_and_not_repeated(
    gcs_server: Server, google_client: Any, key: str, fault: Fault
) -> None:
    async with Proxy(gcs_server.endpoint) as proxy:
        for client in _google_client(proxy.endpoint):
            storage = GCSStorage(gcs_server.bucket, key, client=client)
            proxy.inject(fault, methods={"POST"})

            with pytest.raises(UnknownOutcomeError):
                await storage.write(b"body")

    assert proxy.requests["POST"] == 1
    content, _ = await GCSStorage(gcs_server.bucket, key, client=google_client).read()
    assert content == (b"body" if fault is Fault.DROP_AFTER else b"")


async def test_a_gcs_read_that_fails_is_a_storage_error(gcs_server: Server, key: str) -> None:
    async with Proxy(gcs_server.endpoint) as proxy:
        for client in _google_client(proxy.endpoint):
            storage = GCSStorage(gcs_server.bucket, key, client=client)
            proxy.inject(Fault.INTERNAL_ERROR)

            with pytest.raises(StorageError) as caught:
                await storage.read()

            assert caught.value.cause is not None


async def test_gcs_without_a_client(gcs_server: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs_server.endpoint)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", gcs_server.options["bearer_token"])

    await _check(GCSStorage(gcs_server.bucket, key), GCSStorage(gcs_server.bucket, key))
