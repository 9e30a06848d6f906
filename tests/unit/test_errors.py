"""Every error: under one base, and whole after a trip through pickle."""

from __future__ import annotations

import inspect
import pickle

import pytest

import casque
from casque import errors
from casque.errors import CasqueError

EXAMPLES: list[CasqueError] = [
    errors.InvalidInputError("priority must be a whole number"),
    errors.InvalidPayloadError("send", "it has no address"),
    errors.NotUnderstoodError("send", "it has an argument 'cc'"),
    errors.JobNotFoundError("job-1"),
    errors.LeaseLostError("job-1", 7),
    errors.LeaseLostError("job-1"),
    errors.JobStateError("job-1", "dead", "unfinished"),
    errors.DuplicateKeyError("key-1", "job-1"),
    errors.ReadOnlyError(42),
    errors.ScheduleNotFoundError("nightly"),
    errors.NoHistoryError(),
    errors.HistoryGoneError("what followed position 7", 12),
    errors.CASConflictError("lost"),
    errors.LimitReachedError("calls under way of one token", 3),
    errors.NoLeaderError("the brokers have just started"),
    errors.QueueDrainingError("mail"),
    errors.QueueDrainingError(),
    errors.ZoneLeaseLostError("acme", 7),
    errors.ZoneMovedError("acme", 3),
    errors.ZoneMovedError(None, 3),
    errors.RingError("do something else"),
    errors.BrokerUnreachableError("10.0.0.7:7700", "connection refused"),
    errors.UnknownOutcomeError("nobody knows"),
    errors.LeadershipLostError("10.0.0.7:7700"),
    errors.LeadershipLostError(),
    errors.QueueReplacedError("a queue in the layout 'log'"),
    errors.StorageError("failed", OSError(28, "no space left")),
    errors.StorageError("failed"),
    errors.StoreAccessError("refused", PermissionError(13, "denied")),
    errors.UnsafeStoreError("unsafe"),
    errors.QueueLedError("10.0.0.7:7700"),
    errors.QueueLedError(),
    errors.QueueCopiedError("10.0.0.7:7700"),
    errors.QueueCopiedError(),
    errors.NotAuthenticatedError("no token"),
    errors.NotAllowedError("produce", "enqueue"),
    errors.NotAllowedError("produce", "enqueue", "the entrypoint 'mail'"),
    errors.NotInstalledError("Spark needs Java", "pip install it"),
    errors.JobFailedError("job-1", "dead", "ValueError: no such user"),
    errors.JobFailedError("job-1", "cancelled"),
    errors.NoResultError("job-1", "this queue keeps no archive"),
    errors.CheckpointError("the writerId 'orders' belongs to another query"),
    errors.WorkFailedError("no module named mail"),
    errors.WorkFailedError("the context was stopped", 20),
    errors.CorruptQueueError("queue.json", "cut short"),
    errors.QueueClosedError("closed"),
]
ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
]


def test_there_is_an_example_of_every_error() -> None:
    assert {type(example) for example in EXAMPLES} == set(ALL) - {CasqueError}


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_a_casque_error_and_says_what_it_means(kind: type[Exception]) -> None:
    assert issubclass(kind, CasqueError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", ALL)
def test_every_error_can_be_imported_from_casque(kind: type[Exception]) -> None:
    assert getattr(casque, kind.__name__) is kind
    assert kind.__name__ in casque.__all__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling(error: CasqueError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: repr(v) for k, v in vars(copy).items()} == {k: repr(v) for k, v in vars(error).items()}


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (errors.JobNotFoundError("job-1"), {"job_id": "job-1"}),
        (errors.LeaseLostError("job-1", 7), {"job_id": "job-1", "token": 7}),
        (errors.JobStateError("job-1", "dead", "ready"), {"job_id": "job-1", "state": "dead", "needed": "ready"}),
        (errors.DuplicateKeyError("key-1", "job-1"), {"key": "key-1", "job_id": "job-1"}),
        (errors.CorruptQueueError("queue.json", "cut"), {"key": "queue.json", "problem": "cut"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_carries_its_fields_and_names_them_in_its_text(error: CasqueError, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        assert getattr(error, name) == value
    assert str(next(iter(fields.values()))) in str(error)


def test_a_storage_error_carries_its_cause() -> None:
    cause = OSError("broken")

    assert errors.StorageError("failed", cause).cause is cause
    assert errors.StorageError("failed").cause is None
    assert errors.StoreAccessError("refused", cause).cause is cause


def test_a_storage_error_can_be_pickled_whatever_its_cause() -> None:
    error = errors.StorageError("failed", UnpicklableError())

    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == "failed"


class UnpicklableError(Exception):
    """As an SDK's exception with a socket or a lock in it."""

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("cannot pickle this")


def test_bad_input_is_also_a_value_error() -> None:
    assert issubclass(errors.InvalidInputError, ValueError)


def test_errors_about_access_and_safety_are_storage_errors() -> None:
    assert issubclass(errors.StoreAccessError, errors.StorageError)
    assert issubclass(errors.UnsafeStoreError, errors.StorageError)


def test_a_broker_whose_certificate_is_not_trusted_says_how_to_trust_it() -> None:
    failed = errors.BrokerUnreachableError("a:7700", "SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: self signed")
    silent = errors.BrokerUnreachableError("a:7700", "connection refused")
    assert "ClientTlsFiles(ca=...)" in str(failed)
    assert "Start one with `casque serve`, or correct the address" in str(silent)
