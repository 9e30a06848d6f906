"""The doctor's verdicts: safe where it is safe, and each way of being unsafe found and named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from casque.cli.doctor import doctor
from casque.errors import InvalidInputError, StoreAccessError
from casque.storage.doctor import Effort, Report, examine
from casque.storage.url import open_store
from tests.support import servers
from tests.support.servers import Server

# SeaweedFS lets a writer that finds its lock taken wait for a whole second: few clients, few rounds.
BRIEF = Effort(clients=4, small_rounds=2, large_clients=2, large_rounds=1, large_bytes=1 << 18, counters=3, counts=5)


@pytest.fixture(params=["local", "named memory", "nameless memory"])
def safe_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return (tmp_path / "store").as_uri()
    return "memory://the-doctors-patient" if request.param == "named memory" else "memory://"


async def test_our_own_stores_are_safe(safe_url: str) -> None:
    seen: list[tuple[str, int, int]] = []

    report = await examine(safe_url, effort=BRIEF, progress=lambda *step: seen.append(step))

    assert report.safe, report
    assert report.verdict.startswith("safe")
    assert {latency.verb for latency in report.latencies} == {"create", "replace", "get", "list"}
    assert [number for _, number, _ in seen] == list(range(len(report.findings) + 1))


async def test_seaweedfs_is_safe_and_left_clean(s3_server: Server) -> None:
    url = s3_server.fresh_url()

    report = await examine(url, options=s3_server.options, effort=BRIEF)

    assert report.safe, report
    assert report.leftover == ""
    assert [key async for key in open_store(url, options=s3_server.options).list()] == []
    assert s3_server.options["secret_access_key"] not in repr(report)


async def test_a_server_that_ignores_conditions_is_unsafe(careless_server: Server) -> None:
    report = await examine(careless_server.url, options=careless_server.options, effort=BRIEF)

    assert not report.safe
    assert report.verdict == ("unsafe: this store accepted a second create of the same key: jobs would be lost")
    broken = {finding.promise for finding in report.findings if not finding.held}
    assert broken == {
        "a second create is refused",
        "a replace of an old version is refused",
        "a replace of nothing is refused",
    }
    assert [key async for key in open_store(careless_server.url, options=careless_server.options).list()] == []


async def test_a_server_that_checks_and_then_writes_is_unsafe() -> None:
    # moto passes in quiet, and with small bodies about once in a thousand writes two writers win. While it
    # copies a large body, others come between its check and its write.
    with servers.moto() as moto:
        report = await examine(
            moto.url, options=moto.options, effort=Effort(large_clients=8, large_rounds=15, race_seconds_max=120)
        )

    assert not report.safe
    assert report.findings[1].held
    broken = [finding for finding in report.findings if not finding.held]
    assert "at once" in broken[0].detail or "lost" in broken[0].detail or "overwritten" in broken[0].detail


async def test_no_verdict_without_access(s3_server: Server) -> None:
    with pytest.raises(StoreAccessError):
        await examine(s3_server.url, options={**s3_server.options, "secret_access_key": "wrong"})
    with pytest.raises(InvalidInputError, match="endpoint"):
        await examine(s3_server.url, options={"endpont": "x"})


# --- The command ---


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor.callback)
    return app


def test_the_command_says_safe(command: typer.Typer) -> None:
    result = CliRunner().invoke(command, ["memory://"])

    assert result.exit_code == 0, result.output
    assert "safe: " in result.output
    assert "BROKEN" not in result.output


def test_the_command_says_unsafe_and_why(command: typer.Typer, careless_server: Server) -> None:
    options = [f"--option={name}={value}" for name, value in careless_server.options.items()]

    result = CliRunner().invoke(command, [careless_server.url, *options])
    as_json = CliRunner().invoke(command, [careless_server.url, "--json", *options])

    assert result.exit_code == 1
    assert "accepted a second create of the same key: jobs would be lost" in result.output
    assert as_json.exit_code == 1
    assert not msgspec.json.decode(as_json.stdout, type=Report).safe


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["s3://bucket", "--option", "no-value"],
        ["s3://bucket", "-o", "endpont=x"],
        ["s3://bucket", "-o", "endpoint=http://127.0.0.1:1", "-o", "access_key_id=a", "-o", "secret_access_key=b"],
    ],
)
def test_the_command_says_when_it_cannot_tell(command: typer.Typer, arguments: list[str]) -> None:
    result = CliRunner().invoke(command, arguments)

    assert result.exit_code == 2
    assert "cannot examine" in result.output
    assert "Traceback" not in result.output


# --- A server that takes S3's requests and ignores their conditions ---


class _Careless(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        self.objects[self._key()] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"", etag=self.objects[self._key()])

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            self._answer(200, self._listing(parse_qs(parts.query).get("prefix", [""])[0]))
        elif self._key() not in self.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, self.objects[self._key()], etag=self.objects[self._key()])

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self._answer(204, b"")

    def log_message(self, *_: object) -> None: ...

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).split("/", 2)[2]

    def _listing(self, prefix: str) -> bytes:
        entry = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        found = [
            entry.format(escape(key), len(body)) for key, body in sorted(self.objects.items()) if key.startswith(prefix)
        ]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, etag: bytes | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if etag is not None:
            self.send_header("ETag", f'"{md5(etag).hexdigest()}"')
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def careless_server() -> Iterator[Server]:
    handler = type("Handler", (_Careless,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        options = {"endpoint": endpoint, "region": "x", "access_key_id": "a", "secret_access_key": "b"}
        yield Server("s3", endpoint, options)
        server.shutdown()
        thread.join()
