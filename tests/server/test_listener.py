"""On which addresses a listener listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from peeklock.server.listener import Listener

ELSEWHERE = "192.0.2.1"
"""An address that no machine has. Source: RFC 5737."""


def play(story: Callable[[Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = Listener(asyncio.Protocol, asyncio.Protocol, _no_tls)
        try:
            await story(listener)
        finally:
            listener.close()

    asyncio.run(run())


def _no_tls() -> Any:
    raise AssertionError("nobody spoke TLS")


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let every name stand for these addresses."""

    def let(*addresses: str) -> None:
        def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
            return [
                (family, socket.SOCK_STREAM, 6, "", (address, port))
                for family, address in zip(families, addresses, strict=True)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return let


def answers(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@pytest.mark.parametrize("asked", [0, None])
def test_every_address_of_a_name_is_listened_on_with_one_port(
    resolve: Callable[..., None], asked: int | None
) -> None:
    resolve("127.0.0.1", "127.0.0.2")
    if asked is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            asked = free.getsockname()[1]

    async def story(listener: Listener) -> None:
        port = listener.bind("two.example", asked)
        assert asked in (0, port)
        assert answers("127.0.0.1", port)
        assert answers("127.0.0.2", port)
        assert not answers("127.0.0.3", port)

    play(story)


def test_an_address_that_this_machine_does_not_have_is_left_out(resolve: Callable[..., None]) -> None:
    resolve(ELSEWHERE, "127.0.0.1")

    async def story(listener: Listener) -> None:
        assert answers("127.0.0.1", listener.bind("half.example", 0))

    play(story)


def test_a_name_none_of_whose_addresses_is_ours_is_refused(resolve: Callable[..., None]) -> None:
    resolve(ELSEWHERE)

    async def story(listener: Listener) -> None:
        with pytest.raises(OSError, match="assign requested address"):
            listener.bind("far.example", 0)

    play(story)


def test_a_port_taken_on_one_address_leaves_none_open(resolve: Callable[..., None]) -> None:
    resolve("127.0.0.1", "127.0.0.2")

    async def story(listener: Listener) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                listener.bind("two.example", port)
            assert not answers("127.0.0.1", port)

    play(story)
