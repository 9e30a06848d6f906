"""Tokens: made once, kept as a hash, compared in constant time, and gone when the file says so."""

from __future__ import annotations

import hmac
import json
import logging
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casque import InvalidInputError, NotAuthenticatedError
from casque.testing.clock import ManualClock
from casque.transport import access, tokenfile
from casque.transport.access import ANYBODY, Principal, Scope, TokenBook

MADE = datetime(2026, 2, 15, 10, tzinfo=UTC)
SECRET = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def make(path: Path, name: str = "billing", *scopes: Scope, **more: Any) -> str:
    return tokenfile.add(path, name=name, scopes=scopes or (Scope.PRODUCE,), created=MADE, **more)


def refusal(book: TokenBook, authorization: str | None) -> str:
    with pytest.raises(NotAuthenticatedError) as refused:
        book.principal_for(authorization)
    return str(refused.value)


def test_a_token_says_who_is_calling(path: Path) -> None:
    token = make(path, "billing", Scope.PRODUCE, Scope.READ, entrypoints=("mail.*",), zones=("acme",))

    principal = TokenBook(path).principal_for(f"Bearer {token}")

    assert principal == Principal(
        "billing", frozenset({Scope.PRODUCE, Scope.READ}), ("mail.*",), frozenset({"acme"}), token.split("_")[1]
    )
    assert TokenBook(path).principal_for(f"bearer  {token} ") == principal, "as the header may be written"


def test_the_same_token_gives_the_very_same_principal(path: Path) -> None:
    token = make(path)
    book = TokenBook(path)
    assert book.principal_for(f"Bearer {token}") is book.principal_for(f"Bearer {token}")


def test_the_secret_is_nowhere_in_the_file(path: Path) -> None:
    token = make(path)
    token_id, secret = token.split("_")[1:]

    kept = path.read_text()

    assert token_id in kept
    assert secret not in kept
    assert not any(secret[n : n + 16] in kept for n in range(49)), "nor any part of it"
    assert bytes.fromhex(secret).hex() == secret
    assert len(secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_two_tokens_are_alike(path: Path) -> None:
    tokens = {make(path, f"t{n}") for n in range(20)}
    assert len({token.split("_")[2] for token in tokens}) == 20
    assert len({token.split("_")[1] for token in tokens}) == 20


def test_an_id_that_is_taken_is_drawn_again(path: Path) -> None:
    make(path, "one", entropy=lambda size: b"\x01" * size)
    drawn = iter([b"\x01" * 6, b"\x02" * 6, b"\x03" * 32])
    assert make(path, "two", entropy=lambda _: next(drawn)) == f"casque_{'02' * 6}_{'03' * 32}"


def test_a_missing_token_is_named(path: Path) -> None:
    make(path)
    book = TokenBook(path)
    assert "casque token new" in refusal(book, None)
    assert "casque token new" in refusal(book, "")


@pytest.mark.parametrize(
    "sent",
    [
        "Basic dXNlcjpwYXNzd29yZA==",
        "Bearer",
        "Bearer ",
        "Bearer hunter2-hunter2",
        f"Bearer casque_{'0' * 12}_{SECRET}",
        f"Bearer casque_{'0' * 12}_{SECRET[:-1]}",
        f"Bearer casque_{'0' * 12}_{SECRET}0",
        f"Bearer casque_{'0' * 12}_{SECRET.upper()}",
        f"Bearer casque_{'0' * 11}é_{SECRET}",
        f"Bearer casque_{'٠' * 12}_{SECRET}",
        "Bearer \ud800",
        "Bearer " + SECRET * 10_000,
        SECRET,
    ],
    ids=lambda sent: ascii(sent)[:40],
)
def test_a_token_that_is_none_is_refused_and_never_repeated(path: Path, sent: str) -> None:
    make(path)
    said = refusal(TokenBook(path), sent)
    assert "hunter2" not in said
    assert "dXNl" not in said
    assert SECRET[:8] not in said.lower()


@given(st.text(max_size=300) | st.text(max_size=300).map(lambda text: f"Bearer {text}"))
def test_nothing_but_a_token_gets_in(sent: str) -> None:
    with pytest.raises(NotAuthenticatedError):
        BOOK.principal_for(sent)


class _NoFile(TokenBook):
    """A book of one token that needs no file."""

    def __init__(self) -> None:
        self._path = Path("/nowhere")
        self._clock = ManualClock()
        self._signature = None
        self._entries, self._headers = {}, {}
        self._looked_ms = 0
        self._take((tokenfile.StoredToken("0" * 12, "t", tokenfile.hash_of(SECRET), (Scope.READ,), MADE),))


BOOK = _NoFile()


def test_the_book_of_the_property_above_lets_its_token_in() -> None:
    assert BOOK.principal_for(f"Bearer casque_{'0' * 12}_{SECRET}").name == "t"


def test_a_wrong_secret_and_an_unknown_id_are_told_the_same(path: Path) -> None:
    token = make(path)
    book = TokenBook(path)
    _, token_id, secret = token.split("_")
    wrong = refusal(book, f"Bearer casque_{token_id}_{SECRET}")
    assert wrong == refusal(book, f"Bearer casque_{'0' * 12}_{secret}")
    assert token_id not in wrong


@pytest.mark.parametrize("known", [True, False])
def test_secrets_are_compared_in_constant_time_whether_the_id_is_known_or_not(
    path: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_id = make(path).split("_")[1] if known else "0" * 12
    compared: list[tuple[int, int]] = []

    def watched(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return hmac.compare_digest(a, b)

    class _Hmac:
        compare_digest = staticmethod(watched)

    if not known:
        make(path)
    book = TokenBook(path)
    monkeypatch.setattr(access, "hmac", _Hmac)
    refusal(book, f"Bearer casque_{token_id}_{SECRET}")
    assert compared == [(71, 71)], "hashes of one length, once"


def test_a_wrong_secret_is_refused_after_the_right_one_was_seen(path: Path) -> None:
    token = make(path)
    book = TokenBook(path)
    for _ in range(2):
        assert book.principal_for(f"Bearer {token}").name == "billing"
        refusal(book, f"Bearer {token[:-64]}{SECRET}")
        refusal(book, f"Bearer {token}0")
        refusal(book, f"Bearer {token[:-1]}")
        refusal(book, f"Bearer {token[:-1]}é")
        assert book.principal_for(f"BEARER   {token}").name == "billing"


async def test_a_token_expires(path: Path) -> None:
    clock = ManualClock()
    expires = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC) + timedelta(minutes=5)
    token = make(path, expires=expires)
    book = TokenBook(path, clock=clock)
    principal = book.principal_for(f"Bearer {token}")
    await clock.advance(299.9)
    assert book.principal_for(f"Bearer {token}") is principal
    assert book.current(principal) is principal

    await clock.advance(0.1)

    said = refusal(book, f"Bearer {token}")
    assert "'billing' expired" in said
    assert token.split("_")[2] not in said
    with pytest.raises(NotAuthenticatedError, match="billing"):
        book.current(principal)


async def test_a_changed_file_counts_within_a_second(path: Path) -> None:
    clock = ManualClock()
    old = make(path, "old")
    book = TokenBook(path, clock=clock)
    principal = book.principal_for(f"Bearer {old}")
    new = make(path, "new")
    refusal(book, f"Bearer {new}")  # the file is looked at once a second and not for every call

    await clock.advance(1)

    assert book.principal_for(f"Bearer {new}").name == "new"
    assert book.principal_for(f"Bearer {old}") is principal, "what did not change stays the same"
    tokenfile.revoke(path, "old")
    await clock.advance(1)
    refusal(book, f"Bearer {old}")
    with pytest.raises(NotAuthenticatedError):
        book.current(principal)


def damage(path: Path, harm: str) -> None:
    if harm == "broken":
        path.write_text("{")
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("harm", ["broken", "removed"])
async def test_a_file_that_breaks_leaves_the_tokens_as_they_were_and_says_so_once(
    path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    token = make(path)
    book = TokenBook(path, clock=clock)
    damage(path, harm)

    with caplog.at_level(logging.INFO, "casque"):
        for _ in range(3):
            await clock.advance(1)
            assert book.principal_for(f"Bearer {token}").name == "billing"

    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert token.split("_")[2] not in caplog.text

    damage(path, "removed")
    mended = make(path, "mended")
    await clock.advance(1)
    assert book.principal_for(f"Bearer {mended}").name == "mended"


GOOD = {
    "id": "0" * 12,
    "name": "t",
    "hash": f"sha256:{'0' * 64}",
    "scopes": ["read"],
    "created": "2026-02-15T10:00:00Z",
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a token file"),
        ("[]", "is not a token file"),
        ("\xff", "is not a token file"),
        ('{"version": 2}', "version 2"),
        ('{"version": 1, "tokens": [{}]}', "is not a token file"),
        ({"scopes": []}, "needs a scope"),
        ({"scopes": ["write"]}, "is not a token file"),
        ({"scopes": "read"}, "is not a token file"),
        ({"id": "0"}, "is not a token file"),
        ({"hash": "plain"}, "is not a token file"),
        ({"name": ""}, "name must be"),
        ({"created": "2026-02-15T10:00:00"}, "time zone"),
        ({"expires": "2026-02-15T10:00:00"}, "time zone"),
        ({"entrypoints": []}, "no entrypoint or zone"),
        ({"zones": []}, "no entrypoint or zone"),
        ({"entrypoints": ["*"]}, "leave it out"),
        ({"entrypoints": [""]}, "entrypoint must be"),
        ({"zones": [""]}, "zone must be"),
        ({"only_from": "10.0.0.0/8"}, "only_from"),
    ],
    ids=str,
)
def test_a_file_that_is_not_understood_whole_is_refused(path: Path, text: str | dict[str, Any], says: str) -> None:
    body = text if isinstance(text, str) else json.dumps({"version": 1, "tokens": [GOOD | text]})
    path.write_text(body, encoding="latin-1")
    with pytest.raises(InvalidInputError, match=says) as refused:
        TokenBook(path)
    assert str(path) in str(refused.value)


def test_two_tokens_of_one_name_or_one_id_are_refused(path: Path) -> None:
    for other in ({"name": "u"}, {"id": "1" * 12}):
        path.write_text(json.dumps({"version": 1, "tokens": [GOOD, GOOD | other]}))
        with pytest.raises(InvalidInputError, match="two tokens"):
            TokenBook(path)


def test_a_book_without_a_file_names_the_command_that_makes_one(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="casque token new"):
        TokenBook(path)


def test_a_name_that_is_taken_is_refused_and_nothing_changes(path: Path) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(InvalidInputError, match="already"):
        make(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("revoked_by", ["name", "id"])
def test_a_token_is_revoked_by_its_name_or_its_id(path: Path, revoked_by: str) -> None:
    token, kept = make(path), make(path, "other")
    tokenfile.revoke(path, "billing" if revoked_by == "name" else token.split("_")[1])
    book = TokenBook(path)
    refusal(book, f"Bearer {token}")
    assert book.principal_for(f"Bearer {kept}").name == "other"


def test_a_token_that_is_not_there_cannot_be_revoked(path: Path) -> None:
    make(path)
    with pytest.raises(InvalidInputError, match="there is billing"):
        tokenfile.revoke(path, "biling")


def test_tokens_made_at_the_same_time_are_all_kept(path: Path) -> None:
    makers = [threading.Thread(target=make, args=(path, f"t{n}")) for n in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert {token.name for token in tokenfile.read(path)} == {f"t{n}" for n in range(8)}
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is left lying about"


def test_a_file_keeps_the_mode_that_its_owner_gave_it(path: Path) -> None:
    make(path)
    path.chmod(0o640)
    make(path, "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_to_a_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path.symlink_to(tmp_path / "real" / "tokens.json")
    token = make(path)
    assert path.is_symlink()
    assert TokenBook(path).principal_for(f"Bearer {token}").name == "billing"


def test_a_file_that_everybody_can_write_is_warned_about(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(path)
    TokenBook(path)
    assert caplog.records == []
    path.chmod(0o666)
    TokenBook(path)
    assert "chmod o-w" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(path: Path) -> None:
    path.parent.chmod(0o500)
    with pytest.raises(InvalidInputError, match="cannot be written"):
        make(path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be written"):
        make(tmp_path / "nowhere" / "tokens.json")


def test_admin_is_every_scope_but_that_of_brokers_and_the_others_are_only_themselves() -> None:
    for_people = set(Scope) - {Scope.PEER}
    for scope in Scope:
        principal = Principal("p", frozenset({scope}))
        assert {other for other in Scope if principal.may(other)} == (for_people if scope is Scope.ADMIN else {scope})
    assert all(ANYBODY.may(scope) for scope in for_people)
    assert not ANYBODY.limited


@pytest.mark.parametrize(
    ("entrypoints", "zones", "entrypoint", "zone", "reached"),
    [
        (None, None, "mail", None, True),
        (None, None, "mail", "acme", True),
        (("mail",), None, "mail", None, True),
        (("mail",), None, "mail.a", None, False),
        (("mail",), None, "mai", None, False),
        (("mail.*",), None, "mail.a.b", None, True),
        (("mail.*",), None, "mail", None, False),
        (("mail.*",), None, "mailing", None, False),
        (("fax", "mail.*"), None, "fax", "acme", True),
        (None, {"acme"}, "mail", "acme", True),
        (None, {"acme"}, "mail", "other", False),
        (None, {"acme"}, "mail", None, False),
        (("fax",), {"acme"}, "mail", "acme", False),
    ],
)
def test_what_a_limited_principal_reaches(
    entrypoints: Any, zones: Any, entrypoint: str, zone: str | None, reached: bool
) -> None:
    principal = Principal("p", frozenset({Scope.READ}), entrypoints, None if zones is None else frozenset(zones))
    assert principal.reaches(entrypoint, zone) is reached
