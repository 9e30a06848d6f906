"""Profiles in ~/.aws: their keys are used, and one that cannot be used is named with the fix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from casque.errors import InvalidInputError
from casque.storage import aws_profiles
from casque.storage.aws_profiles import apply_profile
from casque.storage.cloud import CloudStore

CREDENTIALS = """
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = secret

[keys]
aws_access_key_id = KEYS
aws_secret_access_key = secret
aws_session_token = token

[half]
aws_access_key_id = HALF
"""
CONFIG = """
[profile keys]
region = eu-west-1

[profile sso]
sso_session = work
sso_account_id = 1

[sso-session work]
sso_start_url = https://example.org

[profile role]
role_arn = arn:aws:iam::1:role/queue
source_profile = keys
aws_access_key_id = NOT-USED
aws_secret_access_key = secret

[profile empty]
region = eu-west-1

[profile program]
credential_process = {program}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    answer = {"Version": 1, "AccessKeyId": "PROGRAM", "SecretAccessKey": "secret", "SessionToken": "token"}
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    program = f"{sys.executable} -c \"print(open('{tmp_path}/answer.json').read())\""
    (tmp_path / "config").write_text(CONFIG.format(program=program))
    (tmp_path / "credentials").write_text(CREDENTIALS)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_profiles, "find_spec", lambda name: None)


def test_the_keys_and_the_region_of_a_named_profile_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")

    assert apply_profile({"disable_bulk_delete": True}) == {
        "config": {
            "disable_bulk_delete": True,
            "region": "eu-west-1",
            "access_key_id": "KEYS",
            "secret_access_key": "secret",
            "session_token": "token",
        }
    }


def test_without_a_name_the_default_profile_is_used() -> None:
    assert apply_profile({})["config"]["access_key_id"] == "DEFAULT"


@pytest.mark.parametrize("config", [{"access_key_id": "MINE", "secret_access_key": "x"}, {"skip_signature": True}])
def test_options_come_before_profiles(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")

    assert apply_profile(config) == {"config": config}


def test_keys_in_the_environment_come_before_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MINE")

    assert apply_profile({}) == {"config": {}}


def test_a_region_in_the_options_comes_before_that_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")

    assert apply_profile({"region": "us-east-1"})["config"]["region"] == "us-east-1"


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("missing", "there is no AWS profile 'missing'"),
        ("half", "has aws_access_key_id, but no aws_secret_access_key"),
        ("empty", "has no keys"),
        ("sso", "logs in with SSO, which needs boto3: run `pip install boto3`, or export its keys"),
        ("role", "assumes a role, which needs boto3"),
        ("program", "runs a program for its keys, which needs boto3"),
    ],
)
@pytest.mark.usefixtures("without_boto3")
async def test_a_profile_that_cannot_be_used_is_named_with_the_fix(
    profile: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)

    with pytest.raises(InvalidInputError) as refused:
        await CloudStore("s3", "bucket", options={"endpoint": "http://127.0.0.1:1"}).get("queue.json")

    assert said in str(refused.value)


@pytest.mark.usefixtures("without_boto3")
def test_a_default_profile_that_cannot_be_used_leaves_the_role_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[default]\ncredential_process = true\n")

    assert apply_profile({}) == {"config": {}}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("aws_access_key_id = KEYS\n")

    with pytest.raises(InvalidInputError, match="credentials cannot be read: File contains no section headers"):
        apply_profile({})


def test_with_boto3_a_program_may_give_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "program")

    assert apply_profile({})["credential_provider"]()["access_key_id"] == "PROGRAM"


def test_a_login_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "sso")

    with pytest.raises(InvalidInputError, match="the AWS profile 'sso' gives no credentials"):
        apply_profile({})
