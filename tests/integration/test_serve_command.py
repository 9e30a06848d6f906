"""`casque serve` as an operator runs it: what it says, how it ends, and what it will not start with."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from typer.testing import CliRunner, Result

from casque import ClientTlsFiles, NotAllowedError, NotAuthenticatedError, Queue
from casque.cli import serve
from casque.cli.main import app
from casque.cli.process import on_stop_signal
from casque.client.queue import DEFAULTS
from casque.errors import InvalidInputError
from casque.transport import tokenfile
from casque.transport.grpc import osqueue_v1_pb2
from casque.transport.scopes import Scope
from tests.support.servers import Server

RUN = CliRunner()
FREE = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
CA = trustme.CA()


def casque(*arguments: str) -> Result:
    return RUN.invoke(app, list(arguments))


class Serving:
    """A broker in a process of its own, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches; the test's timeout is the limit."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line like {pattern!r} in {self.lines}")

    def told(self) -> dict[str, Any]:
        """The next line, of one that talks JSON."""
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, error = self.process.communicate()
        return self.process.returncode, out, error


@contextmanager
def serving(*arguments: str, cwd: Path | None = None) -> Iterator[Serving]:
    process = subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        cwd=cwd,
    )
    try:
        yield Serving(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


# --- A life ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_says_where_it_is_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path.as_uri(), *FREE, "--no-http", "--layout", "document") as broker:
        broker.until(r"  role +leader, epoch 1$")
        banner = dict(re.findall(r"^  (\w+) +(.+)$", "\n".join(broker.lines), re.MULTILINE))
        assert broker.lines[0].endswith(f"serves {tmp_path.as_uri()}")
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", banner["grpc"])
        assert banner["advertise"] == banner["grpc"]
        assert (banner["http"], banner["layout"], banner["security"]) == ("off", "document", "no TLS, no tokens")

        code, out, error = broker.end(number)

    assert (code, error) == (0, "")
    assert f"{number.name}: stopping" in out
    assert out.rstrip().endswith("stopped")


def test_the_layout_that_is_shown_is_the_queue_s_own(tmp_path: Path) -> None:
    for asked in ("document", "log"):
        with serving(tmp_path.as_uri(), *FREE, "--layout", asked) as broker:
            assert broker.until(r"layout +(\w+)$")[1] == "document"
            broker.until("role")
            assert broker.end()[0] == 0


def test_a_broker_that_is_stopped_is_followed_by_the_next(tmp_path: Path) -> None:
    with serving(tmp_path.as_uri(), *FREE) as first:
        first.until("role +leader, epoch 1")
        address = first.lines[3].split()[1]
        with serving(tmp_path.as_uri(), *FREE) as second:
            second.until(rf"role +standby: {re.escape(address)} leads, epoch 1")
            assert first.end()[0] == 0
            second.until(r"^\d\d:\d\d:\d\d leader, epoch \d+$")
            assert second.end()[0] == 0


def test_a_broker_talks_json_to_programs(tmp_path: Path) -> None:
    with serving(tmp_path.as_uri(), *FREE, "--no-http", "--log-format", "json", "-v") as broker:
        line = broker.told()
        assert (line["message"], line["role"], line["epoch"]) == ("serving", "leader", 1)
        assert line.keys() == {
            *("time", "level", "logger", "message"),
            *("url", "grpc", "http", "advertise", "layout", "security"),
            *("role", "epoch", "leader", "position", "problem"),
        }
        code, out, error = broker.end()
    assert code == 0
    assert [json.loads(line)["message"] for line in out.splitlines()][-1] == "stopped"
    logged = [json.loads(line) for line in error.splitlines()]
    assert {"casque.broker"} <= {line["logger"] for line in logged}
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in logged)


@pytest.mark.parametrize("way", ["grpcs", "https", "bucket"])
async def test_a_broker_with_mutual_tls_and_tokens_lets_in_who_has_both(tmp_path: Path, way: str) -> None:
    where = tmp_path / "queue"
    files = certificates(tmp_path)
    made = datetime(2026, 2, 15, tzinfo=UTC)
    token = tokenfile.add(tmp_path / "tokens.json", name="t", scopes=[Scope.PRODUCE], created=made)
    secure = [f"--{option}={tmp_path / name}" for option, name in SECURE.items()]
    with serving(where.as_uri(), *FREE, *secure) as broker:
        port = {wire: broker.until(rf"{wire} +127\.0\.0\.1:(\d+)$")[1] for wire in ("grpc", "http")}
        assert "mutual TLS, tokens" in broker.until("security.*$")[0]
        broker.until("role +leader")
        url = {
            "grpcs": f"grpcs://127.0.0.1:{port['grpc']}",
            "https": f"https://127.0.0.1:{port['http']}",
            "bucket": where.as_uri(),
        }[way]
        via = "broker" if way == "bucket" else None
        async with Queue.open(url, via=via, token=token, tls=files) as queue:
            assert (await queue.enqueue("mail", b"hello")).entrypoint == "mail"
            with pytest.raises(NotAllowedError):
                await queue.dequeue("mail")
        async with Queue.open(url, via=via, tls=files) as queue:
            with pytest.raises(NotAuthenticatedError):
                await queue.enqueue("mail", b"hello")
        assert broker.end()[0] == 0


@pytest.mark.parametrize("how", ["flag", "file"])
async def test_clients_of_osqueue_may_be_silent_for_as_long_as_the_broker_says(tmp_path: Path, how: str) -> None:
    where = tmp_path / "queue"
    (tmp_path / "casque.toml").write_text(f'url = "{where.as_uri()}"\nsettings.osqueue_timeout = 77\n')
    asked = [where.as_uri(), "--osqueue-timeout", "77"] if how == "flag" else []
    with serving(*asked, *FREE, "--no-http", cwd=tmp_path) as broker:
        port = broker.until(r"grpc +127\.0\.0\.1:(\d+)$")[1]
        broker.until("role +leader")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            service = "/osqueue.v1.QueueService"
            push = osqueue_v1_pb2.PushRequest(data=b"1").SerializeToString()
            await channel.unary_unary(f"{service}/Push")(push)
            await channel.unary_unary(f"{service}/Claim")(osqueue_v1_pb2.ClaimRequest().SerializeToString())
        async with Queue.open(f"grpc://127.0.0.1:{port}") as queue:
            [job] = await queue.jobs()
        assert broker.end()[0] == 0
    assert job.lease == timedelta(seconds=77)


@pytest.mark.parametrize("guarded", [True, False])
async def test_metrics_and_readiness_want_a_token_if_they_are_guarded(tmp_path: Path, guarded: bool) -> None:
    made = datetime(2026, 2, 15, tzinfo=UTC)
    token = tokenfile.add(tmp_path / "tokens.json", name="t", scopes=[Scope.READ], created=made)
    more = ["--tokens", str(tmp_path / "tokens.json"), *(["--guarded"] if guarded else [])]
    with serving((tmp_path / "queue").as_uri(), *FREE, *more) as broker:
        port = broker.until(r"http +127\.0\.0\.1:(\d+)$")[1]
        broker.until("role +leader")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            open_to_all = [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")]
            client.headers["Authorization"] = f"Bearer {token}"
            with_token = [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")]
        assert broker.end()[0] == 0
    assert open_to_all == ([200, 401, 401] if guarded else [200, 200, 200])
    assert with_token == [200, 200, 200]


SECURE = {"tokens": "tokens.json", "tls-cert": "cert.pem", "tls-key": "key.pem", "tls-client-ca": "ca.pem"}


def certificates(directory: Path) -> ClientTlsFiles:
    """A broker's and a client's, of one authority."""
    broker, client = CA.issue_cert("127.0.0.1"), CA.issue_cert("producer")
    broker.private_key_pem.write_to_path(str(directory / "key.pem"))
    broker.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    client.private_key_pem.write_to_path(str(directory / "client-key.pem"))
    client.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
    CA.cert_pem.write_to_path(str(directory / "ca.pem"))
    return ClientTlsFiles(ca=directory / "ca.pem", cert=directory / "client.pem", key=directory / "client-key.pem")


# --- What it will not start with ---


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "nonsense"], "--listen must be HOST:PORT"),
        (["--http", "nonsense"], "--http must be HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--http", "0.0.0.0:0"], "--insecure"),
        (["--listen", "10.1.2.3:0"], "--tls-cert"),
        (["--listen", "0.0.0.0:7700", "--insecure"], "--advertise NAME:7700"),
        (["--advertise", "0.0.0.0:7700"], "no address that anybody could call"),
        (["--advertise", "broker"], "--advertise must be HOST:PORT"),
        (["--tokens", "nowhere.json"], "casque token new"),
        (["--tokens", "/dev/null"], "is not a token file"),
        (["--guarded"], "add --tokens FILE"),
        (["--tls-cert", "cert.pem"], "--tls-key is missing"),
        (["--tls-key", "key.pem"], "--tls-cert is missing"),
        (["--tls-client-ca", "ca.pem"], "--tls-cert is missing"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "no TLS certificate"),
        (["--heartbeat", "0"], "--heartbeat must be more than 0"),
        (["--lease", "-1"], "--leader-lease must be more than 0"),
        (["--lease", "nan"], "--leader-lease must be more than 0"),
        (["--lease", "3"], "at least twice the heartbeat"),
        (["--drain", "inf"], "--drain must be"),
        (["--osqueue-timeout", "0"], "--osqueue-timeout must be more than 0"),
        (["--setting", "osqueue_timeout=0"], "osqueue_timeout must be"),
        (["--setting", "retention"], "NAME=VALUE"),
        (["--setting", "retentoin=60"], "did you mean 'retention'"),
        (["--setting", "retention=soon"], "a number, of seconds"),
        (["--setting", "retention=nan"], "out of all proportion"),
        (["--setting", "batch_max=1.5"], "batch_max"),
        (["--setting", "archive=maybe"], "true or false"),
        (["--option", "region"], "NAME=VALUE"),
        (["--option", "nonsense=1"], "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    queue = tmp_path / "queue"
    result = casque("serve", queue.as_uri(), *FREE, *arguments)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert not queue.exists() or not any(queue.iterdir())


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/queue", "s3://", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    result = casque("serve", url, *FREE)
    assert result.exit_code == 2
    assert result.output


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = casque("serve", tmp_path.as_uri(), *FREE, option, f"127.0.0.1:{port}")
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}" in result.output
    assert not (tmp_path / "queue.json").exists()


def test_a_damaged_queue_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text("{")
    result = casque("serve", tmp_path.as_uri(), *FREE)
    assert result.exit_code == 1
    assert "queue.json" in result.output


def test_a_refusal_is_json_for_programs(tmp_path: Path) -> None:
    result = casque("serve", tmp_path.as_uri(), "--listen", "nonsense", "--log-format", "json")
    assert result.exit_code == 2
    line = json.loads(result.stderr)
    assert line["level"] == "error"
    assert "--listen" in line["message"]


def test_a_bucket_that_is_not_there_is_named(s3_server: Server) -> None:
    arguments = [part for name, value in s3_server.options.items() for part in ("-o", f"{name}={value}")]
    result = casque("serve", "s3://no-such-bucket/queue", *FREE, *arguments)
    assert result.exit_code == 2
    assert "bucket" in result.output


@pytest.mark.parametrize("missing", ["grpc", "starlette"])
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path, missing: str) -> None:
    without = f"import sys; sys.modules[{missing!r}] = None; from casque.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", without, "serve", tmp_path.as_uri(), *FREE], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert 'pip install "casque[server]"' in ended.stderr
    other = subprocess.run([sys.executable, "-c", without, "--version"], capture_output=True, text=True)
    assert other.returncode == 0, "the other commands do without"


async def test_a_second_signal_does_not_wait_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stops: list[signal.Signals] = []
    receive = on_stop_signal(stops.append)
    try:
        receive(signal.SIGTERM)
        assert (stops, codes) == ([signal.SIGTERM], [])
        receive(signal.SIGINT)
        assert codes == [1]
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def test_every_setting_of_a_queue_can_be_given() -> None:
    given = [f"{name}={_written(value)}" for name, value in asdict(DEFAULTS).items()]
    assert serve.settings_from(given) == DEFAULTS
    assert serve.settings_from(["archive_format=parquet"]).archive_format == "parquet"
    with pytest.raises(InvalidInputError, match="archive_format takes both, jsonl, parquet, not 'csv'"):
        serve.settings_from(["archive_format=csv"])
    changed = serve.settings_from(["archive=false", "archive_retention=0.5", "max_attempts=3"])
    assert (changed.archive, changed.archive_retention, changed.max_attempts) == (False, timedelta(seconds=0.5), 3)


def _written(value: Any) -> str:
    return str(value.total_seconds()) if isinstance(value, timedelta) else str(value).lower()
