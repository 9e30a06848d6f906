"""Mistakes that need a process of their own: certificates, protocols, tokens, missing packages, ports, closed pipes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from typer.testing import CliRunner

from casque.cli.main import app

LIMIT_S = 60.0
"""Generous: without a diagnosis, a client repeats its call for half a minute and says less."""
MISSING = "raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
SHOP = """
import casque

app = casque.App("{url}")


@app.job(max_attempts=1)
def send(to: str) -> None:
    raise ValueError(f"no such user: {{to}}")
"""


class Ended(NamedTuple):
    code: int
    said: str


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CASQUE_", "AWS_"))}
    return {**kept, "COLUMNS": "200", **more}


def casque(typed: str, cwd: Path, **variables: str) -> Ended:
    """Run a command as a process of its own. What it says is one line, whatever the width of a terminal."""
    ended = subprocess.run(
        [sys.executable, "-m", "casque.cli", *shlex.split(typed)],
        cwd=cwd,
        env=environment(XDG_CONFIG_HOME=str(cwd / "home"), **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Ended(ended.returncode, " ".join((ended.stdout + ended.stderr).split()))


@contextmanager
def running(typed: str, cwd: Path, until: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """A command that goes on; stopped at the end. Waits for a line that matches."""
    process = subprocess.Popen(
        [sys.executable, "-m", "casque.cli", *shlex.split(typed)],
        cwd=cwd,
        env=environment(XDG_CONFIG_HOME=str(cwd / "home")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process, read_until(process, until)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, "".join(lines), re.DOTALL):
            return found
    raise AssertionError(f"nothing like {pattern!r} in {lines}")


# --- Brokers with TLS and tokens ---


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A broker that asks for TLS and tokens, and what its clients need."""
    here = tmp_path_factory.mktemp("broker")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(here / "ca.pem")
    cert = ca.issue_cert("127.0.0.1")
    cert.private_key_pem.write_to_path(here / "key.pem")
    cert.cert_chain_pems[0].write_to_path(here / "cert.pem")
    made = CliRunner().invoke(
        app, ["token", "new", "--file", str(here / "tokens.json"), "--name", "ann", "--scope", "admin"]
    )
    url = (here / "queue").as_uri()
    tls = "--tls-cert cert.pem --tls-key key.pem --tokens tokens.json"
    started = r"grpc\s+127.0.0.1:(\d+)\n\s+http\s+127.0.0.1:(\d+).*role\s+leader"
    with running(f"serve {url} --listen 127.0.0.1:0 --http 127.0.0.1:0 {tls}", here, started) as (_, ports):
        yield {
            "dir": here,
            "q": url,
            "token": re.findall(r"casque_\w+", made.stdout)[-1],
            "grpc": f"127.0.0.1:{ports[1]}",
            "http": f"127.0.0.1:{ports[2]}",
        }


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("jobs list grpcs://{grpc}", "the certificate of {grpc} is not trusted"),
        ("jobs list https://{http}", "the certificate of {http} is not trusted"),
        ("jobs list grpc://{grpc}", "the broker at {grpc} requires TLS: write grpcs://{grpc}, and name the authority"),
        ("jobs list http://{http}", "the broker at {http} requires TLS: write https://{http}"),
        ("jobs list {q}", "the broker at {grpc}, which leads this queue, requires TLS: name the authority with --ca"),
        ("jobs list grpcs://{grpc} --ca ca.pem", "this broker requires a token: set the variable CASQUE_TOKEN"),
        ("top grpcs://{grpc} --once", "the certificate of {grpc} is not trusted"),
        ("queue info grpc://{grpc}", "the broker at {grpc} requires TLS"),
        ("worker shop:app --url grpcs://{grpc}", "the certificate of {grpc} is not trusted"),
    ],
)
def test_a_broker_that_cannot_be_reached_this_way_is_named_with_the_right_way(
    broker: Mapping[str, Any], typed: str, said: str
) -> None:
    (broker["dir"] / "shop.py").write_text(SHOP.format(url=broker["q"]))

    ended = casque(typed.format(**broker), broker["dir"])

    assert said.format(**broker) in ended.said
    assert ended.code == 2
    assert "ssl_transport_security" not in ended.said, "lines of gRPC itself"


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    "way", ["jobs list grpcs://{grpc} --ca ca.pem", "jobs list {q} --ca ca.pem", "jobs list -q mail"]
)
def test_an_authority_and_a_token_reach_it(broker: Mapping[str, Any], way: str) -> None:
    home = broker["dir"] / "home" / "casque"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[queues.mail]\nurl = "grpcs://{broker["grpc"]}"\ntls = {{ ca = "{broker["dir"]}/ca.pem" }}\n'
    )

    ended = casque(way.format(**broker), broker["dir"], CASQUE_TOKEN=broker["token"])

    assert ended == (0, "no jobs in this queue; finished ones are in `casque archive`")


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("typed", ["worker shop:app --burst", "worker shop:app --burst -q mail", "jobs list"])
def test_tls_for_brokers_beside_the_url_of_a_bucket_does_no_harm(tmp_path: Path, typed: str) -> None:
    url = (tmp_path / "queue").as_uri()
    CliRunner().invoke(app, ["queue", "create", url])
    (tmp_path / "shop.py").write_text(SHOP.replace('"{url}"', ""))
    lines = f'url = "{url}"\ntls = {{ ca = "{tmp_path}/ca.pem" }}\n'
    (tmp_path / "casque.toml").write_text(f"{lines}[queues.mail]\n{lines}")

    assert casque(typed, tmp_path).code == 0


# --- Ports ---


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_second_broker_on_one_machine_takes_the_next_http_port_and_says_so(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            first.bind(("127.0.0.1", 7701))
            first.listen()
        except OSError:
            pass  # another process on this machine has it, which is as good
        started = r"http\s+127.0.0.1:(\d+) \(7701 is in use\)"
        with running(f"serve {url} --listen 127.0.0.1:0", tmp_path, started) as (_, ports):
            assert int(ports[1]) > 7701


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_port_of_another_protocol_is_named(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    started = r"grpc\s+127.0.0.1:(\d+)\n\s+http\s+127.0.0.1:(\d+)"
    with running(f"serve {url} --listen 127.0.0.1:0 --http 127.0.0.1:0", tmp_path, started) as (_, ports):
        wrong = casque(f"jobs list grpc://127.0.0.1:{ports[2]}", tmp_path)
        secure = casque(f"jobs list grpcs://127.0.0.1:{ports[1]}", tmp_path)

    assert f"speaks HTTP, not gRPC: write http://127.0.0.1:{ports[2]}" in wrong.said
    assert f"has no TLS: write grpc://127.0.0.1:{ports[1]}" in secure.said
    assert (wrong.code, secure.code) == (2, 2)


# --- Packages ---


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("typed", "missing", "said"),
    [
        ("demo --data {dir}/data", "grpc", 'pip install "casque[server]"'),
        ("serve {q}", "grpc", 'pip install "casque[server]"'),
        ("jobs list grpc://127.0.0.1:1", "grpc", 'pip install "casque[server]"'),
        ("pipeline run {q} file://{dir}/warehouse", "pyspark", 'pip install "casque[spark]"'),
        ("report file://{dir}/warehouse --output page.html", "pyspark", 'pip install "casque[spark]"'),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, typed: str, missing: str, said: str
) -> None:
    package = tmp_path / "blocked" / missing
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MISSING.format(name=missing))
    url = (tmp_path / "queue").as_uri()
    CliRunner().invoke(app, ["queue", "create", url])
    path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    ended = casque(typed.format(q=url, dir=tmp_path), tmp_path, PYTHONPATH=path)

    assert said in ended.said
    assert ended.code == 2
    assert not (tmp_path / "data").exists(), "nothing was begun"


def test_help_shows_the_names_of_extras_as_they_are() -> None:
    shown = CliRunner().invoke(app, ["pipeline", "run", "--help"], env={"COLUMNS": "300"}).stdout

    assert 'pip install "casque[spark]"' in " ".join(shown.split())


# --- Pipes ---


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    CliRunner().invoke(app, ["enqueue", url, "send", "--count", "3000"])
    listed = f"{sys.executable} -m casque.cli jobs list {url} --limit 3000 --json"
    shell = f"{listed} | head -1 > /dev/null; echo ${{PIPESTATUS[0]}}"

    ended = subprocess.run(
        ["bash", "-c", shell], env=environment(), capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )

    assert (ended.stdout, ended.stderr) == ("0\n", "")


# --- Profiles of AWS's own tools ---


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("missing", "there is no AWS profile 'missing' in {home}/.aws/credentials or {home}/.aws/config"),
        ("half", "the AWS profile 'half' has aws_access_key_id, but no aws_secret_access_key"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(tmp_path: Path, profile: str, said: str) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[half]\naws_access_key_id = AKIA\n")

    ended = casque("jobs list s3://bucket/orders", tmp_path, AWS_PROFILE=profile, HOME=str(tmp_path))

    assert said.format(home=tmp_path) in ended.said
    assert ended.code == 2


# --- A full disk ---


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("typed", ["enqueue {q} send hello", "enqueue {new} send hello", "queue pause {q}"])
def test_a_full_disk_is_named_at_once(tmp_path: Path, typed: str) -> None:
    url = (tmp_path / "queue").as_uri()
    CliRunner().invoke(app, ["queue", "create", url])
    command = typed.format(q=url, new=(tmp_path / "new").as_uri())
    # As good as a full disk: no file of this process may grow. One that is not told waits for half a minute.
    shell = f"ulimit -f 0; exec {sys.executable} -m casque.cli {command}"

    ended = subprocess.run(
        ["bash", "-c", shell], env=environment(), capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )

    said = " ".join(ended.stderr.split())
    assert "the disk is full, and" in said
    assert "was not written" in said
    assert "File too large. Free some space, and repeat the call" in said
    assert (ended.returncode, ended.stdout) == (2, "")
    listed = casque(f"jobs list {url}", tmp_path)
    assert listed.said.startswith("no jobs in this queue")


# --- Workers ---


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_worker_logs_the_traceback_of_a_handler_that_failed(tmp_path: Path, form: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(url=(tmp_path / "queue").as_uri()))
    assert casque("""enqueue --app shop:app send '{"to": "ada"}'""", tmp_path).code == 0

    ended = casque(f"worker shop:app --burst --log-format {form}", tmp_path)

    assert "ValueError: no such user: ada" in ended.said
    assert f"{tmp_path}/shop.py" in ended.said
    assert "line 9, in send" in ended.said
    assert ended.code == 0


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_worker_that_reloads_starts_again_when_its_code_changes(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SHOP.format(url=(tmp_path / "queue").as_uri()))
    with running("worker shop:app --reload", tmp_path, r"works on send\n") as (worker, _):
        file.write_text(file.read_text().replace("def send", "def post"))
        read_until(worker, r"shop.py changed: starting again.*works on post\n")
        file.write_text("oops(\n")
        read_until(worker, r"shop.py changed: starting again.*cannot be imported: SyntaxError")
        file.write_text(SHOP.format(url=(tmp_path / "queue").as_uri()))
        read_until(worker, r"works on send\n")
    assert worker.returncode == 0
