"""`casque token` as people run it, on a real file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from casque.cli.main import app
from casque.clock import SystemClock
from casque.transport.access import Scope, TokenBook

RUN = CliRunner()


def casque(*arguments: str) -> Result:
    return RUN.invoke(app, list(arguments))


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "tokens.json")


def listed(file: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(casque("token", "list", "--file", file, "--json").stdout)
    return found


def test_a_new_token_is_printed_alone_and_opens_the_door(file: str) -> None:
    result = casque(
        "token", "new", "-f", file, "-n", "billing", "-s", "produce", "-s", "read", "-e", "mail.*", "-e", "fax"
    )
    assert result.exit_code == 0, result.output
    token = result.stdout.removesuffix("\n")
    assert "\n" not in token
    assert "not shown again" in result.stderr
    assert token not in result.stderr

    principal = TokenBook(file).principal_for(f"Bearer {token}")

    assert principal.name == "billing"
    assert principal.scopes == {Scope.PRODUCE, Scope.READ}
    assert principal.entrypoints == ("mail.*", "fax")


def test_a_list_shows_everything_but_secrets(file: str) -> None:
    token = casque("token", "new", "-f", file, "-n", "billing [x]", "-s", "produce", "-z", "acme").stdout.strip()
    casque("token", "new", "-f", file, "-n", "worker", "-s", "work", "-e", "mail", "--expires", "2d")

    result = casque("token", "list", "-f", file)

    assert result.exit_code == 0
    assert "billing [x]" in result.output
    assert token.split("_")[1] in result.output
    assert token.split("_")[2] not in result.output
    assert "sha256" not in result.output
    first, second = listed(file)
    assert first.keys() == {"id", "name", "scopes", "entrypoints", "zones", "created", "expires", "expired"}
    assert (first["zones"], first["expires"]) == (["acme"], None)
    assert (second["name"], second["entrypoints"], second["expired"]) == ("worker", ["mail"], False)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("90d", timedelta(days=90)),
        ("4w", timedelta(weeks=4)),
    ],
)
def test_a_token_ends_after_a_time(file: str, text: str, span: timedelta) -> None:
    casque("token", "new", "-f", file, "-n", "t", "-s", "read", "--expires", text)
    [token] = listed(file)
    ends, made = (datetime.fromisoformat(str(token[field])) for field in ("expires", "created"))
    assert ends - made == span


@pytest.mark.parametrize(
    ("text", "ends"),
    [("2999-01-31", "2999-01-31T00:00:00+00:00"), ("2999-01-31T18:00:00+01:00", "2999-01-31T17:00:00+00:00")],
)
def test_a_token_ends_at_a_moment(file: str, text: str, ends: str) -> None:
    casque("token", "new", "-f", file, "-n", "t", "-s", "read", "--expires", text)
    [token] = listed(file)
    assert datetime.fromisoformat(str(token["expires"])) == datetime.fromisoformat(ends)


def test_a_token_of_a_zone_may_work(file: str) -> None:
    token = casque("token", "new", "-f", file, "-n", "acme", "-s", "work", "-z", "acme").stdout.strip()
    principal = TokenBook(file).principal_for(f"Bearer {token}")
    assert principal.scopes == {Scope.WORK}
    assert principal.zones == frozenset({"acme"})


def test_a_token_that_is_over_is_listed_as_such(file: str) -> None:
    casque("token", "new", "-f", file, "-n", "t", "-s", "read", "--expires", "1m")
    path = Path(file)
    kept = json.loads(path.read_text())
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    kept["tokens"][0]["expires"] = (now - timedelta(seconds=1)).isoformat()
    path.write_text(json.dumps(kept))
    assert "(over)" in casque("token", "list", "-f", file).output
    assert listed(file)[0]["expired"] is True


def test_a_revoked_token_is_gone(file: str) -> None:
    casque("token", "new", "-f", file, "-n", "one", "-s", "read")
    casque("token", "new", "-f", file, "-n", "two", "-s", "read")
    result = casque("token", "revoke", "-f", file, "-n", "one")
    assert result.exit_code == 0
    assert "revoked 'one'" in result.output
    assert [token["name"] for token in listed(file)] == ["two"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["new", "-n", "there", "-s", "read"], "already"),
        (["new", "-n", "", "-s", "read"], "name must be"),
        (["new", "-n", "t", "-s", "write"], "write"),
        (["new", "-n", "t"], "--scope"),
        (["new", "-n", "t", "-s", "read", "-e", "*"], "leave it out"),
        (["new", "-n", "t", "-s", "read", "--expires", "soon"], "90d"),
        (["new", "-n", "t", "-s", "read", "--expires", "0d"], "more than nothing"),
        (["new", "-n", "t", "-s", "read", "--expires", "999999w"], "hundred years"),
        (["new", "-n", "t", "-s", "read", "--expires", "2001-01-01"], "is in the past"),
        (["revoke", "-n", "nobody"], "there is there"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(file: str, arguments: list[str], says: str) -> None:
    casque("token", "new", "-f", file, "-n", "there", "-s", "read")
    before = Path(file).read_bytes()
    result = casque("token", *arguments, "-f", file)
    assert result.exit_code == 2
    assert says in result.output
    assert Path(file).read_bytes() == before


@pytest.mark.parametrize("command", [["list"], ["revoke", "-n", "t"], ["new", "-n", "t", "-s", "read"]])
def test_a_broken_file_is_named_and_left_alone(file: str, command: list[str]) -> None:
    Path(file).write_text("{")
    result = casque("token", *command, "-f", file)
    assert result.exit_code == 2
    assert "is not a token file" in result.output
    assert Path(file).read_text() == "{"
