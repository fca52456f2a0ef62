"""A connection over a given socket: no token, and no other connection after a break."""

from __future__ import annotations

import socket

import pytest

from peeklock.client.errors import CONNECTION_LOST, ServiceBusError
from peeklock.client.given import GivenConnection
from peeklock.client.links import ReceiveMode


def test_after_a_break_each_call_says_why_at_once() -> None:
    ours, theirs = socket.socketpair()
    connection = GivenConnection(ours, "here")
    theirs.close()
    for _ in range(2):
        with pytest.raises(ServiceBusError) as refused:
            connection.receiver("orders", ReceiveMode.PEEK_LOCK).receive(1, 1)
        assert refused.value.condition == CONNECTION_LOST
        assert not refused.value.retryable
        assert "sb://here/" in str(refused.value)
