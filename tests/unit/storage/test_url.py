from __future__ import annotations

from pathlib import Path

import pytest

from casque.errors import InvalidInputError
from casque.storage.local import LocalStore
from casque.storage.memory import MemoryStore
from casque.storage.url import open_store
from casque.testing.store_suite import created


def test_a_name_in_memory_is_one_store_and_no_name_is_a_private_one() -> None:
    assert open_store("memory://url-a") is open_store("memory://url-a")
    assert open_store("memory://url-a") is not open_store("memory://url-b")
    assert open_store("memory://url-a/deeper") is not open_store("memory://url-a")
    assert open_store("memory://") is not open_store("memory://")
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize("name", ["plain", "with space", "per%cent", "ümlaut", "ques?tion", "ha#sh"])
async def test_a_path_survives_the_way_through_its_url(tmp_path: Path, name: str) -> None:
    store = open_store((tmp_path / name).as_uri())
    assert isinstance(store, LocalStore)

    await created(store, "key", b"body")

    assert (tmp_path / name / "key").read_bytes() == b"body"
    await store.close()


def test_localhost_is_this_machine(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://localhost{tmp_path}"), LocalStore)


@pytest.mark.parametrize("url", ["file://./data", "file://data", "file:data", "file://"])
def test_a_relative_file_url_is_refused_with_the_absolute_one(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"absolute path, for example file:///"):
        open_store(url)


def test_a_bare_path_is_refused_with_its_url() -> None:
    with pytest.raises(InvalidInputError, match=r"file:///var/lib/queue"):
        open_store("/var/lib/queue")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"ftp://; use memory://, file://, s3://"):
        open_store("ftp://host/path")


def test_a_query_on_a_file_url_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="%3F"):
        open_store("file:///var/lib/queue?x=1")


def test_options_belong_to_cloud_stores() -> None:
    with pytest.raises(InvalidInputError, match="takes no options, got region"):
        open_store("memory://name", options={"region": "eu"})


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_cloud_url_needs_a_bucket(scheme: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{scheme}://bucket/prefix"):
        open_store(f"{scheme}:///prefix")


def test_a_cloud_url_carries_options_and_explicit_ones_go_first() -> None:
    url = "s3://bucket/a%20b?region=eu-west-1&no_such_option=1"

    assert repr(open_store("s3://bucket/a?region=eu-west-1")) == "CloudStore('s3://bucket/a')"
    with pytest.raises(InvalidInputError, match="no_such_option"):
        open_store(url)
    with pytest.raises(InvalidInputError, match="anonymous"):
        open_store("s3://bucket/a?anonymous=true", options={"anonymous": "neither yes nor no"})


def test_a_fragment_on_a_cloud_url_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="%23"):
        open_store("s3://bucket/prefix#1")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(InvalidInputError, match="is a file"):
        open_store((tmp_path / "file").as_uri())
