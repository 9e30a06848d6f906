"""Credentials of S3 stores from the profiles of AWS's own tools: `~/.aws/credentials` and `~/.aws/config`.

Keys that are written in a profile are read here. A profile that logs in, assumes a role or runs a program needs boto3,
which is used if it is installed and never required.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from configparser import Error as ParserError
from configparser import RawConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from casque.errors import InvalidInputError

# These make a profile more than its keys; boto3 prefers them to keys beside them.
_BEFORE_KEYS = {
    "role_arn": "assumes a role",
    "sso_session": "logs in with SSO",
    "sso_start_url": "logs in with SSO",
}
_AFTER_KEYS = {"credential_process": "runs a program for its keys", "login_session": "logs in with `aws login`"}
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def apply_profile(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return obstore's arguments for an S3 store, completed by the profile of this process.

    Keys in the options or the environment come first, as in AWS's own tools.

    Raises:
        InvalidInputError: AWS_PROFILE names a profile that does not exist or cannot be used here.
    """
    arguments: dict[str, Any] = {"config": dict(config)}
    variables = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if "access_key_id" in config or "skip_signature" in config or any(map(os.environ.get, variables)):
        return arguments
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    profiles = _read_profiles()
    if name not in profiles:
        if named:
            there = ", ".join(sorted(profiles)) or "none"
            raise InvalidInputError(
                f"there is no AWS profile {name!r} in {_credentials_file()} or {_config_file()} (there are: {there}): "
                "correct the variable AWS_PROFILE, or unset it"
            )
        return arguments
    profile = profiles[name]
    if "region" in profile and not any(map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))):
        arguments["config"].setdefault("region", profile["region"])
    if how := _indirect(profile):
        if find_spec("boto3") is not None:
            arguments["credential_provider"] = _ask_boto3(name)
        elif named:
            raise InvalidInputError(
                f"the AWS profile {name!r} {how}, which needs boto3: run `pip install boto3`, or export its keys with "
                f'`eval "$(aws configure export-credentials --profile {name} --format env)"`'
            )
    elif "aws_access_key_id" in profile:
        if "aws_secret_access_key" not in profile:
            raise InvalidInputError(f"the AWS profile {name!r} has aws_access_key_id, but no aws_secret_access_key")
        arguments["config"].update({_KEYS[key]: profile[key] for key in _KEYS if key in profile})
    elif named:
        raise InvalidInputError(
            f"the AWS profile {name!r} has no keys: add aws_access_key_id and aws_secret_access_key to it, "
            "or unset AWS_PROFILE to use the machine's role"
        )
    return arguments


def _indirect(profile: Mapping[str, str]) -> str | None:
    """How a profile gets its keys, if they are not written in it."""
    found = [how for key, how in _BEFORE_KEYS.items() if key in profile]
    if not found and "aws_access_key_id" not in profile:
        found = [how for key, how in _AFTER_KEYS.items() if key in profile]
    return found[0] if found else None


def _ask_boto3(name: str) -> Any:
    import boto3  # optional
    from botocore.exceptions import BotoCoreError, ClientError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=name))
        provider()  # a login that has ended is reported now, by name, not by a request that fails later
    except (BotoCoreError, ClientError, ValueError) as error:
        raise InvalidInputError(f"the AWS profile {name!r} gives no credentials: {error}") from error
    return provider


def _credentials_file() -> Path:
    return Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()


def _config_file() -> Path:
    return Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()


def _read_profiles() -> dict[str, dict[str, str]]:
    profiles: dict[str, dict[str, str]] = {}
    for file in (_config_file(), _credentials_file()):  # the second wins
        parser = RawConfigParser()
        try:
            parser.read(file)
        except (ParserError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{file} cannot be read: {error}") from error
        for section in parser.sections():
            kind, _, name = section.rpartition(" ")
            if kind in ("", "profile"):
                profiles.setdefault(name.strip('"'), {}).update(parser.items(section))
    return profiles
