from __future__ import annotations

from datetime import timedelta

import pytest

from casque.errors import InvalidInputError
from casque.storage.cloud import CloudStore
from casque.storage.cloud_options import read_options

VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_ENDPOINT")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("s3", {"endpont": "x"}, "did you mean 'endpoint'"),
        ("s3", {"acces_key": "x"}, "did you mean 'access_key_id'"),
        ("gs", {"region": "x"}, "gs:// store has no option 'region'"),
        ("s3", {"zzz": "x"}, "there are access_key_id, "),
        ("s3", {"anonymous": "maybe"}, "true or false"),
        ("az", {"timeout": "soon"}, "number of seconds"),
        ("az", {"timeout": "-1"}, "number of seconds"),
        ("ftp", {}, "use s3, gs or az"),
    ],
)
def test_what_makes_no_store_is_refused(scheme: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_options(scheme, options)


def test_plain_http_is_allowed_for_a_plain_endpoint_only() -> None:
    assert read_options("s3", {"endpoint": "http://127.0.0.1:8333/"}).client["allow_http"] is True
    assert read_options("s3", {"endpoint": "https://minio.example"}).client["allow_http"] is False
    assert read_options("s3", {}).client["allow_http"] is False


def test_an_endpoint_comes_from_the_environment_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general:1")
    assert read_options("s3", {}).endpoint == "http://general:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://special:1")
    assert read_options("s3", {}).endpoint == "http://special:1"

    assert read_options("s3", {"endpoint": "http://given:1"}).endpoint == "http://given:1"


def test_timeouts_are_options() -> None:
    client = read_options("s3", {"timeout": "2.5", "connect_timeout": "1"}).client

    assert client["timeout"] == timedelta(seconds=2.5)
    assert client["connect_timeout"] == timedelta(seconds=1)


def test_the_azure_emulator_may_live_on_any_port() -> None:
    assert read_options("az", {"emulator": "true"}).endpoint == "http://127.0.0.1:10000/devstoreaccount1"

    config = read_options("az", {"emulator": "true", "endpoint": "http://127.0.0.1:4711"}).config

    assert config["endpoint"] == "http://127.0.0.1:4711/devstoreaccount1"
    assert config["account_name"] == "devstoreaccount1"


def test_a_store_shows_where_it_is_and_no_secret() -> None:
    options = {"access_key_id": "AKIA", "secret_access_key": "hush", "endpoint": "https://minio.example"}

    assert repr(CloudStore("s3", "jobs", "/emails/", options=options)) == (
        "CloudStore('s3://jobs/emails', endpoint='https://minio.example')"
    )
