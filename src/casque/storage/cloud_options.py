"""The options of a cloud store, and their translation to obstore's configuration.

Options are text, from a URL's query or a command line, with the same names for every cloud where the idea is the same.
Defaults come from where each cloud's own tools look: the AWS_*, GOOGLE_* and AZURE_* variables, instance metadata,
workload identity. An unknown name is an error: a misspelt `endpoint` would otherwise send a test's jobs to the real
cloud.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from casque.errors import InvalidInputError

TIMEOUT_SECONDS = 20.0
CONNECT_TIMEOUT_SECONDS = 5.0

# Published with the emulator and the same everywhere; it protects nothing.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

# Our name -> obstore's name.
_S3 = {
    "region": "region",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "session_token",
    "anonymous": "skip_signature",
    "virtual_hosted_style": "virtual_hosted_style_request",
    "server_side_encryption": "server_side_encryption",
    "sse_kms_key_id": "sse_kms_key_id",
    "endpoint": "aws_endpoint_url_s3",
}
_GCS = {
    "service_account": "service_account",
    "service_account_key": "service_account_key",
    "application_credentials": "application_credentials",
    "bearer_token": "bearer_token",
    "anonymous": "skip_signature",
    "endpoint": "base_url",
}
_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "bearer_token": "token",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "anonymous": "skip_signature",
    "endpoint": "endpoint",
}
_NAMES = {"s3": _S3, "gs": _GCS, "az": _AZURE}
_FLAGS = frozenset({"anonymous", "virtual_hosted_style", "emulator", "allow_http"})
_OURS = ("allow_http", "timeout", "connect_timeout")
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ALIASES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}


class Backend(msgspec.Struct, frozen=True):
    """Which cloud, and the arguments for obstore's constructor."""

    kind: str
    config: dict[str, Any]
    client: dict[str, Any]
    endpoint: str | None


def read_options(scheme: str, options: Mapping[str, str]) -> Backend:
    """Translate a scheme and options to obstore's arguments.

    Raises:
        InvalidInputError: an option does not exist, or does not take this value.
    """
    kind = _ALIASES.get(scheme)
    if kind is None:
        raise InvalidInputError(f"no cloud store has the scheme {scheme!r}: use s3, gs or az")
    _refuse_unknown(kind, options)
    values: dict[str, Any] = {name: _flag(name, v) if name in _FLAGS else v for name, v in options.items()}
    if values.pop("emulator", False):
        values = _emulator(values)
    endpoint = values.get("endpoint") or _endpoint_from_environment(kind)
    if endpoint is not None:
        values["endpoint"] = endpoint.rstrip("/")
    names = _NAMES[kind]
    config = {names[name]: value for name, value in values.items() if name in names}
    client = {
        "timeout": _seconds("timeout", values.get("timeout"), TIMEOUT_SECONDS),
        "connect_timeout": _seconds("connect_timeout", values.get("connect_timeout"), CONNECT_TIMEOUT_SECONDS),
        "allow_http": values.get("allow_http", bool(endpoint) and str(endpoint).startswith("http://")),
    }
    if kind == "s3":
        # One DELETE per key works everywhere; several compatible servers lack the bulk call.
        config["disable_bulk_delete"] = True
    return Backend(kind, config, client, values.get("endpoint"))


def _refuse_unknown(kind: str, options: Mapping[str, str]) -> None:
    known = [*_NAMES[kind], *_OURS, *(["emulator"] if kind == "az" else [])]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise InvalidInputError(f"a {kind}:// store has no option {name!r}: {hint}")


def _flag(name: str, text: str) -> bool:
    value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())
    if value is None:
        raise InvalidInputError(f"the option {name!r} takes true or false, not {text!r}")
    return value


def _seconds(name: str, text: str | None, default: float) -> timedelta:
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86_400.0:
        raise InvalidInputError(f"the option {name!r} takes a number of seconds, not {text!r}")
    return timedelta(seconds=seconds)


def _emulator(values: dict[str, Any]) -> dict[str, Any]:
    # Spelled out instead of obstore's use_emulator, which ignores `endpoint` and insists on port 10000.
    base = values.get("endpoint", "http://127.0.0.1:10000").rstrip("/")
    account = values.get("account_name", _EMULATOR_ACCOUNT)
    return {
        "account_key": _EMULATOR_KEY,
        **values,
        "account_name": account,
        "endpoint": base if base.endswith("/" + account) else f"{base}/{account}",
    }


def _endpoint_from_environment(kind: str) -> str | None:
    for variable in _ENDPOINT_VARIABLES[kind]:
        if value := os.environ.get(variable):
            return value
    return None
