"""OpenLineage events of runs, as a file and as a server receives them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from casque.cli.main import app
from casque.errors import InvalidInputError
from casque.spark.lineage import Lineage
from casque.spark.models import models
from casque.spark.pipeline import run
from casque.spark.warehouse import Warehouse
from tests.spark.test_pipeline import something_happens

pytestmark = pytest.mark.xdist_group("spark")


class Receiver(ThreadingHTTPServer):
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status = 201
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, dict(self.headers), msgspec.json.decode(body)))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_a_run_is_reported_with_its_queue_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(something_happens(url, 4))
    file = tmp_path / "lineage.jsonl"
    summary = run(spark, url, warehouse, lineage=Lineage(str(file)))
    start, complete = lines(file)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["eventTime"] <= complete["eventTime"]
    assert start["run"]["runId"] == complete["run"]["runId"] == str(UUID(start["run"]["runId"]))
    assert start["job"] == complete["job"]
    assert start["job"]["namespace"] == "casque"
    assert [start["inputs"][0][name] for name in ("namespace", "name")] == ["file", str(tmp_path / "queue")]
    assert complete["inputs"][0]["facets"]["version"]["datasetVersion"] == str(summary.position)
    assert start["outputs"] == []

    outputs = {one["name"].removeprefix(f"{tmp_path}/warehouse/"): one for one in complete["outputs"]}
    assert outputs.keys() == models().keys()
    snapshot = warehouse.snapshot()
    for name, one in outputs.items():
        counted = one["outputFacets"]["outputStatistics"]
        assert counted["rowCount"] == snapshot.arrow(name).num_rows, name
        assert (counted["size"] > 0) is (counted["rowCount"] > 0)
        assert one["facets"]["version"]["datasetVersion"] == str(snapshot.root.tables[name])
        fields = one["facets"]["schema"]["fields"]
        assert {field["name"]: field["type"] for field in fields} == models()[name].types
        assert all(field["description"] for field in fields)

    run(spark, url, warehouse, lineage=Lineage(file.as_uri()))
    assert [(one["eventType"], one["outputs"]) for one in lines(file)[2:]] == [("START", []), ("COMPLETE", [])]
    assert len({one["run"]["runId"] for one in lines(file)}) == 2


def test_a_server_gets_the_events_of_a_run_that_fails(
    spark: SparkSession, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "of a test")
    nothing, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    with pytest.raises(InvalidInputError, match="there is no queue here") as caught:
        run(spark, nothing, warehouse, lineage=Lineage(receiver.url))
    (path, headers, start), (_, _, failed) = receiver.received
    assert path == "/api/v1/lineage"
    assert (headers["Content-Type"], headers["Authorization"]) == ("application/json", "Bearer of a test")
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert failed["run"]["facets"]["errorMessage"]["message"] == str(caught.value)


def test_events_that_cannot_be_delivered_are_warnings_without_secrets(receiver: Receiver, tmp_path: Path) -> None:
    warnings: list[str] = []
    receiver.status = 503
    Lineage(f"{receiver.url}/lineage?key=secret", warn=warnings.append).start("file:///q", "file:///w")
    Lineage("http://127.0.0.1:1", warn=warnings.append).start("file:///q", "file:///w")
    Lineage(str(tmp_path / "nowhere" / "file"), warn=warnings.append).start("file:///q", "file:///w")
    assert len(warnings) == 3
    assert warnings[0] == f"the lineage event START did not reach {receiver.url}/lineage: Service Unavailable"
    assert "refused" in warnings[1]
    assert "No such file" in warnings[2]


def test_an_interrupted_run_is_aborted(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    Lineage(str(file)).start("s3://bucket/orders?region=x", "s3://bucket/warehouse").fail(KeyboardInterrupt())
    start, aborted = lines(file)
    assert aborted["eventType"] == "ABORT"
    assert start["inputs"] == [{"namespace": "s3://bucket", "name": "orders"}]
    assert "region" not in start["job"]["name"]


@pytest.mark.parametrize("target", ["ftp://host/x", "", "http://", "http://me:secret@host"])
def test_lineage_goes_to_a_server_or_a_file(target: str) -> None:
    with pytest.raises(InvalidInputError, match=r"to a file, not to|OPENLINEAGE_API_KEY instead"):
        Lineage(target)
    ended = CliRunner().invoke(app, ["pipeline", "run", "file:///nowhere/q", "file:///nowhere/w", "--lineage", target])
    assert ended.exit_code == 2
