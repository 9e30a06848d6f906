"""The options of a write, without a session."""

from __future__ import annotations

import pytest

from casque.errors import InvalidInputError
from casque.spark.via import Via
from casque.spark.write_options import OnKnown, WriteOptions

pytestmark = pytest.mark.xdist_group("spark")


def test_names_come_in_any_case_and_options_of_the_store_have_a_prefix() -> None:
    given = {"path": "s3://bucket/queue", "TXNID": "a", "txnversion": "3", "store.region": "eu-central-1"}
    options = WriteOptions.parse(given)
    assert (options.txn_id, options.txn_version, options.store) == ("a", 3, {"region": "eu-central-1"})
    assert options.via is Via.AUTO


def test_spark_hands_over_options_of_its_own_which_are_passed_over() -> None:
    assert WriteOptions.parse({"path": "file:///queue", "checkpointlocation": "/tmp/x"}).url == "file:///queue"


def test_ids_that_are_derived_skip_what_is_known_unless_told_otherwise() -> None:
    def skips(**more: str) -> bool:
        return WriteOptions.parse({"path": "file:///queue", **more}).skips_known

    assert not skips()
    assert skips(idFrom="a,b")
    assert skips(onKnown=OnKnown.SKIP)
    assert not skips(idFrom="a", onKnown=OnKnown.FAIL)


def test_secrets_are_not_shown_and_not_named_in_errors() -> None:
    options = WriteOptions.parse({"path": "file:///queue", "token": "HUSH", "tlsKey": "HUSH"})
    assert repr(options) == "WriteOptions('file:///queue')"
    with pytest.raises(InvalidInputError) as caught:
        WriteOptions.parse({"path": "s3://bucket/queue", "store.secret": "HUSH"})
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("run_at", "tomorrow", "run_at must be a time with its zone, for example 2026-02-15T10:00:00Z, not 'tomorrow'"),
        ("run_at", "2026-02-15T10:00:00", "run_at must be a time with its zone"),
        ("onKnown", "ignore", "onKnown must be one of fail, skip, not 'ignore'"),
        ("payload", "xml", "payload must be one of column, json, not 'xml'"),
        ("priority", "high", "priority must be a whole number, not 'high'"),
        ("max_attempts", "0", "max_attempts must be"),
    ],
)
def test_a_wrong_value_is_refused_with_what_the_option_takes(option: str, value: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        WriteOptions.parse({"path": "file:///queue", option: value})
