"""Which HTTP requests are taken where no secret is asked for, by their `Host` and `Origin`."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from peeklock.server.origins import OriginPolicy

NAMED = OriginPolicy(["Broker.lan.", "*.shop.example", "go.lan:5671", "fe80::1"])


def test_a_foreign_page_whose_request_has_no_origin_is_refused_by_what_its_browser_says() -> None:
    """Req: R-04. As of an image whose address is a stream of deliveries."""
    refused = NAMED.refusal_of_site("cross-site", None)
    assert refused is not None
    assert refused[0] is HTTPStatus.FORBIDDEN
    assert NAMED.refusal_of_site("cross-site", "http://localhost:3000") is None  # its `Origin` decides
    for site in (None, "none", "same-origin", "same-site"):
        assert NAMED.refusal_of_site(site, None) is None
    assert OriginPolicy().refusal_of_site("cross-site", None) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:5300",
        "localhost.:5300",
        "app.localhost",
        "127.0.0.1:5300",
        "10.1.2.3",
        "192.0.2.7:",
        "[::1]:5300",
        "[2001:DB8::1]",
        "broker.lan",
        "BROKER.LAN:80",
        "broker.lan.:5300",
        "eu.shop.example:443",
        "go.lan",
        "go.lan:1",
    ],
)
def test_addresses_localhost_and_given_names_are_known(host: str) -> None:
    """Req: R-04. With any port, in any case, with the dot of the root."""
    assert NAMED.knows([host])
    assert NAMED.refusal_of_host([host]) is None


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:5300",
        "localhost.rebound.example",
        "notlocalhost",
        "127.0.0.1.rebound.example",
        "127.1",
        "0x7f000001",
        "2130706433",
        "127.0.0.01",
        "::1",
        "[127.0.0.1]",
        "[::1",
        "[]",
        "fe80",
        "lan",
        "sub.broker.lan",
        "shop.example",
        "a.b.shop.example",
        "evil.shop.example.org",
        "localhost@rebound.example",
        "localhost, rebound.example",
        "localhost:80:80",
        "localhost:x",
        "localhost/",
        "localhost..",
        "http://localhost",
        "",
        ".",
        ":5300",
        "*.shop.example",
        "x" * 10_000,
    ],
)
def test_any_other_host_is_unknown(host: str) -> None:
    """Req: R-04."""
    refusal = NAMED.refusal_of_host([host])
    assert refusal is not None
    assert refusal[0] == HTTPStatus.MISDIRECTED_REQUEST
    assert "--host-name" in refusal[1]
    assert len(refusal[1]) < 800


def test_the_refusal_names_the_host_and_what_to_do() -> None:
    refusal = OriginPolicy([]).refusal_of_host(["Rebound.example:5300"])
    assert refusal == (
        421,
        "the host rebound.example is not known, and this broker asks for no secret: use localhost or an IP "
        "address, or start it with --host-name rebound.example",
    )


def test_each_host_of_a_request_has_to_be_known_and_there_has_to_be_one() -> None:
    """Req: R-04. `Host` and the authority of an absolute target. Source: RFC 9112 3.2.2."""
    assert NAMED.knows(["localhost", "127.0.0.1"])
    assert not NAMED.knows(["localhost", "rebound.example"])
    assert not NAMED.knows(["rebound.example", "localhost"])
    assert not NAMED.knows([])
    assert "--host-name rebound.example" in (NAMED.refusal_of_host(["localhost", "rebound.example"]) or "")[1]
    assert "names no host" in (NAMED.refusal_of_host([]) or "")[1]


def test_only_pages_of_this_machine_may_come() -> None:
    """Req: R-04. Else any page that a developer opens could read and empty his queues."""
    policy = OriginPolicy([])
    for own in ("http://localhost:3000", "https://app.localhost", "http://127.0.0.1", "http://[::1]:8080"):
        assert policy.refusal_of_origin(own, ["localhost"]) is None, own
    for other in (
        "https://evil.example",
        "http://localhost.evil.example:5300",
        "http://localhost@evil.example",
        "http://10.0.0.1",
        "http://[::ffff",
        "null",
        "",
        "http://localhost, http://evil.example",
    ):
        refusal = policy.refusal_of_origin(other, ["localhost:5300"])
        assert refusal is not None, other
        assert refusal[0] == HTTPStatus.FORBIDDEN
    assert policy.refusal_of_origin(None, ["localhost"]) is None


@pytest.mark.parametrize(
    ("origin", "hosts", "taken"),
    [
        ("https://Broker.lan:5671", ["broker.lan:5671"], True),
        ("http://10.0.0.1:5300", ["10.0.0.1:5300"], True),
        ("http://[2001:db8::1]:5300", ["[2001:DB8:0::1]:5300"], True),
        ("https://broker.lan:5671", ["broker.lan:5300"], False),
        ("https://rebound.example:5300", ["rebound.example:5300"], False),
        ("https://evil.example", ["broker.lan:5671"], False),
        ("http://broker.lan", ["broker.lan", "localhost"], False),
        ("null", ["null"], False),
        ("https://broker.lan:5671", [], False),
    ],
)
def test_a_client_may_name_the_broker_s_own_address_as_its_origin(
    origin: str, hosts: list[str], taken: bool
) -> None:
    """Req: R-04. The Python client does, over WebSocket. The name of a rebound page is not the broker's."""
    assert (NAMED.refusal_of_origin(origin, hosts) is None) is taken


def test_where_a_secret_is_asked_for_every_request_is_taken() -> None:
    """Req: R-04. The JavaScript client works in browsers too."""
    policy = OriginPolicy()
    assert policy.knows(["rebound.example"])
    assert policy.knows([])
    assert policy.refusal_of_host(["rebound.example"]) is None
    assert policy.refusal_of_origin("https://shop.example.com", ["localhost"]) is None
