"""Where a broker may listen, and what it may call itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casque import InvalidInputError
from casque.transport.listening import Address, advertised, check_exposure


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7700", "127.0.0.1", 7700),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:7700", "::1", 7700),
        ("[::]:65535", "::", 65535),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("localhost:7700", "localhost", 7700),
        ("broker-1.queue.svc.cluster.local:7700", "broker-1.queue.svc.cluster.local", 7700),
        ("queue_1:80", "queue_1", 80),
        ("example.com.:80", "example.com.", 80),
        ("4you:80", "4you", 80),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "HOST:PORT"),
        ("7700", "HOST:PORT"),
        (":7700", "HOST:PORT"),
        ("localhost", "HOST:PORT"),
        ("127.0.0.1", "HOST:PORT"),
        ("http://localhost:7700", "brackets"),
        ("grpc//localhost:7700", "HOST:PORT"),
        ("::1", "brackets"),
        ("::", "brackets"),
        ("::1:7700", "brackets"),
        ("[::1]", "brackets"),
        ("[127.0.0.1]:7700", "IPv6"),
        ("[]:7700", "IPv6"),
        ("localhost:", "port"),
        ("localhost:http", "port"),
        ("localhost:-1", "port"),
        ("localhost:65536", "port"),
        ("localhost:٧٧", "port"),
        ("localhost:000000000000000001", "port"),
        ("256.0.0.1:7700", "HOST:PORT"),
        ("127.1:7700", "HOST:PORT"),
        ("0:7700", "HOST:PORT"),
        ("0x7f.0x1:7700", "HOST:PORT"),
        ("2130706433:7700", "HOST:PORT"),
        ("a b:7700", "HOST:PORT"),
        ("-a:7700", "HOST:PORT"),
        ("a..b:7700", "HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_the_right_form(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says) as refused:
        Address.parse(text, option="--listen")
    assert "--listen" in str(refused.value)


@given(st.text(max_size=30))
def test_whatever_is_parsed_can_be_written_and_parsed_again(text: str) -> None:
    try:
        address = Address.parse(text)
    except InvalidInputError:
        return
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "loopback", "wildcard"),
    [
        ("127.0.0.1:1", True, False),
        ("127.255.0.9:1", True, False),
        ("[::1]:1", True, False),
        ("[::ffff:127.0.0.1]:1", True, False),
        ("localhost:1", True, False),
        ("LocalHost.:1", True, False),
        ("0.0.0.0:1", False, True),
        ("[::]:1", False, True),
        ("[0:0:0:0:0:0:0:0]:1", False, True),
        ("[::ffff:0.0.0.0]:1", False, True),
        ("10.0.0.7:1", False, False),
        ("192.168.1.1:1", False, False),
        ("[fe80::1]:1", False, False),
        ("[::ffff:10.0.0.7]:1", False, False),
        ("localhost.example.com:1", False, False),
        ("broker-1:1", False, False),
    ],
)
def test_what_only_this_machine_reaches_is_told_from_what_others_reach(
    text: str, loopback: bool, wildcard: bool
) -> None:
    address = Address.parse(text)
    assert (address.is_loopback, address.is_wildcard) == (loopback, wildcard)


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("insecure", [True, False])
@pytest.mark.parametrize("text", ["127.0.0.1:1", "0.0.0.0:1", "10.0.0.7:1", "broker-1:1", "[::]:1"])
def test_a_network_is_let_in_only_with_tls_and_tokens_or_on_purpose(
    text: str, tls: bool, tokens: bool, insecure: bool
) -> None:
    address = Address.parse(text)
    if insecure or (tls and tokens) or text.startswith("127"):
        check_exposure(address, tls=tls, tokens=tokens, insecure=insecure)
        return
    with pytest.raises(InvalidInputError) as refused:
        check_exposure(address, tls=tls, tokens=tokens, insecure=insecure, option="--http")
    said = str(refused.value)
    assert ("--tls-cert" in said, "--tokens" in said) == (not tls, not tokens)
    assert "--insecure" in said
    assert f"--http {text}" in said


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:7700", None, "127.0.0.1:7700"),
        ("10.0.0.7:7700", None, "10.0.0.7:7700"),
        ("127.0.0.1:0", None, "127.0.0.1:0"),
        ("0.0.0.0:7700", "broker-1:7700", "broker-1:7700"),
        ("0.0.0.0:7700", "broker-1:443", "broker-1:443"),
        ("127.0.0.1:0", "localhost:0", "localhost:0"),
    ],
)
def test_others_are_told_where_to_call(listen: str, advertise: str | None, expected: str) -> None:
    assert str(advertised(Address.parse(listen), advertise)) == expected


@pytest.mark.parametrize(
    ("listen", "advertise", "says"),
    [
        ("0.0.0.0:7700", None, "--advertise NAME:7700"),
        ("[::]:0", None, "--advertise NAME:PORT"),
        ("0.0.0.0:7700", "0.0.0.0:7700", "no address that anybody could call"),
        ("10.0.0.7:7700", "[::]:7700", "no address that anybody could call"),
        ("10.0.0.7:7700", "[::ffff:0.0.0.0]:7700", "no address that anybody could call"),
        ("10.0.0.7:7700", "broker-1:0", "not 0"),
        ("10.0.0.7:7700", "broker-1", "HOST:PORT"),
    ],
)
def test_an_address_that_nobody_could_call_is_never_told(listen: str, advertise: str | None, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        advertised(Address.parse(listen), advertise)


def test_a_port_that_was_free_takes_the_place_of_0() -> None:
    assert str(Address.parse("[::1]:0").at(41234)) == "[::1]:41234"
