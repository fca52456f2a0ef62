"""The way from a node to the owner of a namespace."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest
import uvloop

from peeklock.server.net.relay import Caller
from peeklock.server.net.to_owner import ToOwner


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_comes_for_a_client_that_is_gone_is_dropped(make_loop: type[asyncio.AbstractEventLoop]) -> None:
    """uvloop raises an error if a closed transport is written to."""

    async def check() -> None:
        loop = asyncio.get_running_loop()
        near, _far = socket.socketpair()
        owner_near, _owner_far = socket.socketpair()
        client, _ = await loop.create_connection(asyncio.Protocol, sock=near)
        owner = ToOwner(cast(Caller, None))  # which is asked nothing here
        to_owner, _ = await loop.create_connection(lambda: owner, sock=owner_near)
        owner.begin(client)
        client.abort()
        await asyncio.sleep(0.01)
        owner.data_received(b"late")
        to_owner.set_protocol(asyncio.Protocol())
        to_owner.abort()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(check())
