"""Names of hosts as options give them."""

from __future__ import annotations

import pytest

from peeklock.config.hosts import host_and_port_of, host_of, is_host, is_host_and_port


@pytest.mark.parametrize(
    ("name", "host", "with_port"),
    [
        ("broker", True, False),
        ("a.b-c.xn--bcher-kva.example", True, False),
        ("_x.example", True, False),
        ("*.example.org", True, False),
        ("192.0.2.7", True, False),
        ("2001:db8::7", True, False),
        ("x" * 63, True, False),
        (".".join(["x" * 63] * 3 + ["x" * 61]), True, False),
        (".".join(["x" * 63] * 3 + ["x" * 62]), False, False),
        ("x" * 64, False, False),
        ("a.", False, False),
        ("", False, False),
        ("broker:5671", False, True),
        ("192.0.2.7:1", False, True),
        ("[2001:db8::7]:65535", False, True),
        ("broker:65536", False, False),
        ("broker:0", False, False),
        ("broker:05", False, False),
        ("broker:", False, False),
        ("*.example.org:5671", False, False),
        ("[broker]:1", False, False),
        ("[127.0.0.1]:1", False, False),
        ("[::1]", False, False),
        ("a:1:1", False, False),
    ],
)
def test_what_a_host_is_and_what_one_with_a_port(name: str, host: bool, with_port: bool) -> None:
    assert (is_host(name), is_host_and_port(name)) == (host, with_port)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("broker", "broker"),
        ("broker:5671", "broker"),
        ("192.0.2.7:1", "192.0.2.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]:1", "2001:db8::7"),
    ],
)
def test_the_host_of_a_name(name: str, host: str) -> None:
    assert host_of(name) == host


@pytest.mark.parametrize(
    ("address", "found"),
    [("broker:5671", ("broker", 5671)), ("192.0.2.7:1", ("192.0.2.7", 1)), ("[::1]:99", ("::1", 99))],
)
def test_the_host_and_the_port_of_an_address(address: str, found: tuple[str, int]) -> None:
    assert host_and_port_of(address) == found
