"""TLS files: whatever is wrong with them is said when they are read."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from casque import InvalidInputError
from casque.clock import SystemClock
from casque.testing.clock import ManualClock
from casque.transport.tls import TlsFiles

CA = trustme.CA()
TODAY = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)


def files(
    directory: Path, *, days: float = 90, client_ca: trustme.CA | None = None, key_type: trustme.KeyType | None = None
) -> TlsFiles:
    cert = CA.issue_cert(
        "localhost",
        "127.0.0.1",
        not_before=TODAY - timedelta(days=365),
        not_after=TODAY + timedelta(days=days),
        key_type=key_type or trustme.KeyType.ECDSA,
    )
    cert.private_key_pem.write_to_path(directory / "key.pem")
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    if client_ca is not None:
        client_ca.cert_pem.write_to_path(directory / "clients.pem")
    return TlsFiles(
        directory / "cert.pem", directory / "key.pem", None if client_ca is None else directory / "clients.pem"
    )


@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_a_certificate_and_its_key_are_for_grpc_and_http(tmp_path: Path, key_type: trustme.KeyType) -> None:
    at = files(tmp_path, key_type=key_type)
    tls = at.load()
    assert tls.cert == at.cert.read_bytes()
    assert tls.key == at.key.read_bytes()
    assert tls.client_ca is None
    assert tls.context.verify_mode is ssl.CERT_NONE
    assert tls.context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert "PRIVATE" not in repr(tls)


def test_a_certificate_may_have_remarks_in_any_language(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    at = files(tmp_path)
    at.cert.write_bytes("subject=/CN=Büro São Paulo\n".encode() + at.cert.read_bytes())
    at.load()
    assert caplog.records == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate that trustme would not")
def test_a_certificate_that_is_not_for_servers_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = files(tmp_path)
    kind = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=localhost"
    command = ["openssl", "req", "-x509", *kind.split(), "-addext", "extendedKeyUsage=clientAuth"]
    made = subprocess.run([*command, "-keyout", at.key, "-out", at.cert], capture_output=True)
    assert made.returncode == 0, made.stderr
    with caplog.at_level(logging.WARNING, "casque"):
        at.load()
    assert "is not good" in caplog.text


def test_a_good_certificate_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files(tmp_path).load()
    assert caplog.records == []


@pytest.mark.parametrize("known", [True, False], ids=["with a certificate", "without"])
async def test_mutual_tls_lets_only_its_own_in(tmp_path: Path, known: bool) -> None:
    clients = trustme.CA()
    tls = files(tmp_path, client_ca=clients).load()
    assert tls.client_ca == clients.cert_pem.bytes()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.context)
    context = ssl.create_default_context()
    CA.configure_trust(context)
    (clients if known else trustme.CA()).issue_cert("worker").configure_cert(context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        said = b""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            said = await reader.read()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            pass
    assert said == (b"hello" if known else b"")


@pytest.mark.parametrize("missing", ["cert", "key", "client_ca"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    at = files(tmp_path, client_ca=trustme.CA())
    path: Path = getattr(at, missing)
    path.unlink()
    with pytest.raises(InvalidInputError, match=f"there is no TLS .* at {path}"):
        at.load()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        TlsFiles(tmp_path, tmp_path).load()


@pytest.mark.parametrize("broken", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff\x00"])
def test_a_file_that_is_no_pem_is_named(tmp_path: Path, broken: str, body: bytes) -> None:
    at = files(tmp_path, client_ca=trustme.CA())
    path: Path = getattr(at, broken)
    path.write_bytes(body)
    with pytest.raises(InvalidInputError, match="PEM") as refused:
        at.load()
    assert str(path) in str(refused.value)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    at = files(tmp_path)
    CA.issue_cert("other").private_key_pem.write_to_path(at.key)
    with pytest.raises(InvalidInputError, match="does not belong to"):
        at.load()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    at = files(tmp_path)
    key = load_pem_private_key(at.key.read_bytes(), None)
    at.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")))
    with pytest.raises(InvalidInputError, match="encrypted"):
        at.load()


@pytest.mark.parametrize(("days", "says"), [(-1, "has expired"), (3.5, "expires in 3 days")])
def test_a_certificate_that_is_over_or_nearly_so_is_warned_about(
    tmp_path: Path, days: float, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "casque"):
        files(tmp_path, days=days).load()
    assert says in caplog.text
    assert "cert.pem" in caplog.text


def test_the_time_that_is_left_is_judged_by_the_clock(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    later = ManualClock(wall_ms=int((TODAY + timedelta(days=91)).timestamp() * 1000))
    with caplog.at_level(logging.WARNING, "casque"):
        files(tmp_path).load(clock=later)
    assert "has expired" in caplog.text
