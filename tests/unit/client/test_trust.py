"""Where a token goes: to brokers that somebody named on purpose, and over TLS or within this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque import ClientTlsFiles, InvalidInputError, Queue
from casque.client import connecting
from casque.client.config import default_queue, named_queue
from casque.client.connecting import peer_connect
from casque.client.leading import Leading
from casque.client.trust import Origin, check_address, is_from_here
from casque.storage.memory import MemoryStore
from casque.transport.grpc.credentials import ClientTls

TOKEN = "casque_" + "0" * 12 + "_" + "0" * 64


@pytest.fixture(autouse=True)
def _no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CASQUE_TOKEN_HOSTS", raising=False)
    monkeypatch.delenv("CASQUE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("address", "origin", "encrypted", "pinned", "sent"),
    [
        ("127.0.0.1:7700", Origin.HERE, False, False, True),
        ("127.8.0.1:7700", Origin.BUCKET, False, False, True),
        ("[::1]:7700", Origin.BUCKET, False, False, True),
        ("[::ffff:127.0.0.1]:7700", Origin.GIVEN, False, False, True),
        ("localhost:7700", Origin.GIVEN, False, False, True),
        ("localhost.evil.example:7700", Origin.GIVEN, False, False, False),
        ("127.0.0.1.evil.example:7700", Origin.GIVEN, False, False, False),
        ("broker:7700", Origin.GIVEN, False, False, False),
        ("broker:7700", Origin.GIVEN, True, False, True),
        ("broker:7700", Origin.HINT, False, True, False),
        ("broker:7700", Origin.HINT, True, False, True),
        ("broker:7700", Origin.BUCKET, True, False, False),
        ("broker:7700", Origin.BUCKET, True, True, True),
        ("broker:7700", Origin.BUCKET, False, True, False),
        ("broker:7700", Origin.HERE, True, True, False),
    ],
)
def test_a_token_goes_only_where_it_should(
    address: str, origin: Origin, encrypted: bool, pinned: bool, sent: bool
) -> None:
    if sent:
        check_address(address, origin=origin, encrypted=encrypted, pinned=pinned)
        return
    with pytest.raises(InvalidInputError, match="CASQUE_TOKEN_HOSTS="):
        check_address(address, origin=origin, encrypted=encrypted, pinned=pinned)


@pytest.mark.parametrize(
    ("hosts", "address", "sent"),
    [
        ("broker", "broker:7700", True),
        ("other, Broker", "broker.:7700", True),
        ("*.internal", "a.b.internal:7700", True),
        ("*.internal", "internal.evil:7700", False),
        ("10.0.0.0/8", "10.1.2.3:7700", True),
        ("10.0.0.0/8", "11.1.2.3:7700", False),
        ("fd00::/8", "[fd00::7]:7700", True),
        ("*", "anywhere:1", True),
        ("", "broker:7700", False),
    ],
)
def test_hosts_that_are_listed_get_the_token(
    hosts: str, address: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_TOKEN_HOSTS", hosts)
    for origin in Origin:
        if sent:
            check_address(address, origin=origin, encrypted=False, pinned=False)
        else:
            with pytest.raises(InvalidInputError):
                check_address(address, origin=origin, encrypted=False, pinned=False)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
async def test_a_client_does_not_send_its_token_in_clear(scheme: str) -> None:
    async with Queue.open(f"{scheme}://broker.example:7700", token=TOKEN) as q:
        with pytest.raises(InvalidInputError, match="without encryption"):
            await q.stats()


async def test_a_leader_that_only_the_bucket_names_does_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leader(_store: object) -> Leading:
        return Leading(leader="evil.example:7700")

    monkeypatch.setattr(connecting, "look_up", leader)
    monkeypatch.setenv("CASQUE_TOKEN", TOKEN)
    for tls, reason in ((None, "without encryption"), (ClientTlsFiles(), "the bucket names")):
        async with Queue.open(MemoryStore(), via="broker", tls=tls) as q:
            with pytest.raises(InvalidInputError, match=reason):
                await q.enqueue("a", b"")


def here(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, home: bool = False) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CASQUE_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / "casque" / "config.toml" if home else tmp_path / "casque.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'url = "{url}"\n[queues.named]\nurl = "{url}"\n')


@pytest.mark.parametrize("named", [False, True])
async def test_a_file_in_the_current_directory_does_not_get_a_token_sent_somewhere(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(f"grpcs://evil-{named}.example:7700", tmp_path, monkeypatch)
    place = named_queue("named") if named else default_queue()
    assert place is not None
    async with Queue.open(place.url, token=TOKEN, **place.opening()) as q:
        with pytest.raises(InvalidInputError, match=r"casque\.toml in this directory"):
            await q.stats()


async def test_a_file_in_the_home_directory_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here("grpcs://127.0.0.2:1", tmp_path, monkeypatch, home=True)
    place = default_queue()
    assert place is not None
    check = connecting._Trusted(Origin.GIVEN, ClientTlsFiles(), frozenset({"broker:7700"}))
    check.check("broker:7700", TOKEN)
    assert not is_from_here(place.url)


async def test_certificates_of_a_file_in_the_current_directory_vouch_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("memory://x", tmp_path, monkeypatch)
    (tmp_path / "casque.toml").write_text('url = "memory://x"\n[tls]\nserver_name = "evil.example"\n')
    place = default_queue()
    assert place is not None
    trusted = connecting._Trusted(Origin.BUCKET, place.tls)
    with pytest.raises(InvalidInputError, match="the bucket names"):
        trusted.check("evil.example:7700", TOKEN)


def test_brokers_do_not_send_their_token_to_whoever_the_bucket_names() -> None:
    for tls in (None, ClientTls()):
        with pytest.raises(InvalidInputError, match=r"CASQUE_TOKEN_HOSTS=10\.0\.0\.9"):
            peer_connect(0, TOKEN, tls)("10.0.0.9:7700")
    peer_connect(0, None, None)("10.0.0.9:7700")
