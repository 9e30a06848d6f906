"""Every error through a real server and back: on casque's own stream, as a status, and in the middle of a stream."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import grpc
import pytest

from casque import errors
from casque.errors import CasqueError, StorageError, UnknownOutcomeError
from casque.service import ArchivedJob, Lease, QueueEvent, QueueService
from casque.service.requests import Heartbeats, Request
from casque.testing.hosting import FixedHost
from casque.testing.service_suite.jobs import assert_same
from casque.transport.errors import TABLE
from casque.transport.grpc import casque_v1_pb2 as pb
from tests.support.over_grpc import calling, serving

EXAMPLES: list[CasqueError] = [
    errors.InvalidInputError("priority must be a whole number"),
    errors.InvalidPayloadError("send", "it has no address"),
    errors.NotUnderstoodError("send", "it has an argument that is not known"),
    errors.JobNotFoundError("job-1 / 任务"),
    errors.LeaseLostError("job-1", 2**62),
    errors.LeaseLostError("job-1"),
    errors.JobStateError("job-1", "dead", "unfinished"),
    errors.DuplicateKeyError("key-1", "job-1"),
    errors.ScheduleNotFoundError("nightly"),
    errors.QueueDrainingError(),
    errors.ZoneMovedError("acme", 3),
    errors.ZoneLeaseLostError("acme", 3),
    errors.RingError(),
    errors.NoResultError("job-1", "it is nowhere"),
    errors.ReadOnlyError(42),
    errors.NoHistoryError(),
    errors.HistoryGoneError("what followed position 7", 12),
    errors.CASConflictError("lost"),
    errors.LimitReachedError("calls under way of one token", 3),
    errors.NoLeaderError("the brokers have just started"),
    errors.BrokerUnreachableError("10.0.0.7:7700", "connection refused"),
    errors.UnknownOutcomeError("nobody knows"),
    errors.LeadershipLostError("10.0.0.7:7700"),
    errors.LeadershipLostError(),
    errors.QueueReplacedError("a queue in the layout 'log'"),
    errors.StorageError("failed", OSError(28, "no space left")),
    errors.StoreAccessError("refused", PermissionError(13, "denied")),
    errors.UnsafeStoreError("unsafe"),
    errors.QueueLedError("10.0.0.7:7700"),
    errors.QueueCopiedError("10.0.0.7:7700"),
    errors.QueueCopiedError(None),
    errors.QueueLedError(),
    errors.NotAuthenticatedError("no token"),
    errors.NotAllowedError("produce", "enqueue"),
    errors.NotInstalledError("Spark needs Java", "pip install it"),
    errors.CheckpointError("the checkpoint was put back"),
    errors.WorkFailedError("no module named mail", 3),
    errors.JobFailedError("job-1", "dead", "ValueError: no such user"),
    errors.CorruptQueueError("queue.json", "cut short"),
    errors.QueueClosedError("closed"),
    errors.CasqueError("something else"),
]


class Refusing(FixedHost, QueueService):
    """A queue that refuses everything, always for the same reason."""

    def __init__(self, error: Exception) -> None:
        super().__init__(self)
        self._error: Exception | None = error

    async def call(self, request: Request[Any]) -> Any:
        if isinstance(request, Heartbeats):
            return [self._error] * len(request.leases)
        if self._error is not None:
            raise self._error
        return None

    async def events(self, **_named: Any) -> AsyncGenerator[QueueEvent]:
        if self._error is not None:
            raise self._error
        yield cast("QueueEvent", None)

    async def archive(self, **_named: Any) -> AsyncGenerator[ArchivedJob]:
        yield cast("ArchivedJob", None)


def as_it_arrives(error: CasqueError) -> CasqueError:
    """The cause of a storage error is an exception of the broker's process, and stays there."""
    return type(error)(str(error)) if isinstance(error, StorageError) else error


def test_there_is_an_example_of_every_row_of_the_table() -> None:
    assert set(TABLE) == {type(error) for error in EXAMPLES}


def test_every_error_is_in_the_reference_with_its_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "grpc.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", page, re.MULTILINE))
    for kind, (code, _status) in TABLE.items():
        assert f"`{kind.__name__}`" in rows[code], kind


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_an_error_is_the_same_on_the_other_side(error: CasqueError) -> None:
    wanted = as_it_arrives(error)
    async with serving(Refusing(error), admit=lambda _: lambda service: service) as server, calling(server) as client:
        with pytest.raises(CasqueError) as of_a_call:
            await client.ack("job-1")
        [of_a_lease] = await client.heartbeats([Lease("job-1", 1)])
        with pytest.raises(CasqueError) as of_a_stream:
            [event async for event in client.events()]

    assert_same(of_a_call.value, wanted)
    assert_same(of_a_lease, wanted)
    assert_same(of_a_stream.value, wanted)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_an_error_has_its_code_and_its_words_for_everybody(error: CasqueError) -> None:
    async with (
        serving(Refusing(error), admit=lambda _: lambda service: service) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call = channel.unary_unary(
            "/casque.v1.Queue/Ack",
            request_serializer=pb.AckRequest.SerializeToString,
            response_deserializer=pb.AckResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(pb.AckRequest(job_id="job-1"))

    assert raised.value.code().name == TABLE[type(error)][0]
    assert raised.value.details() == str(error)
    said = dict(raised.value.trailing_metadata() or ())["casque-error-bin"]
    assert isinstance(said, bytes)
    assert json.loads(said)["error"] == type(error).__name__
    assert json.loads(said)["message"] == str(error)


@pytest.mark.parametrize("letter", ["é", "\x01", "x"])
async def test_an_error_with_a_very_long_message_still_arrives(letter: str) -> None:
    error = errors.InvalidInputError(letter * 50_000)
    async with (
        serving(Refusing(error), admit=lambda _: lambda service: service) as server,
        calling(server) as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(errors.InvalidInputError) as whole:
            await client.ack("job-1")
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await channel.unary_unary("/casque.v1.Queue/Ack")(b"")

    assert str(whole.value) == str(error)
    assert cut.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    sent = [quote(cut.value.details() or ""), *(b64encode(bytes(value)) for _, value in cut.value.trailing_metadata())]
    assert sum(map(len, sent)) < 8000


async def test_a_bug_in_the_broker_is_an_unknown_outcome_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    host = Refusing(ZeroDivisionError("oh"))
    async with serving(host, admit=lambda _: lambda service: service) as server, calling(server) as client:
        with pytest.raises(UnknownOutcomeError, match="ZeroDivisionError"):
            await client.ack("job-1")

    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
