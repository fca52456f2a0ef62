"""A transport that drops what the client was sent already."""

from __future__ import annotations

import asyncio

import pytest

from peeklock.server.net.handed_on import HandedOnTransport


class Recording(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_what_was_answered_is_dropped_and_the_rest_goes_straight_on(size: int) -> None:
    transport = Recording()
    handed_on = HandedOnTransport(transport, b"hello")
    output = b"hello, client"
    for first in range(0, len(output), size):
        handed_on.write(output[first : first + size])
    assert transport.written == b", client"
    assert handed_on.write == transport.write
    handed_on.writelines([b"!", b"?"])
    assert transport.written == b", client!?"


def test_an_answer_that_was_another_one_ends_the_connection() -> None:
    transport, told = Recording(), []
    handed_on = HandedOnTransport(transport, b"hello", on_mismatch=lambda: told.append(True))
    handed_on.write(b"he")
    handed_on.write(b"y")
    assert (transport.written, transport.is_aborted, told) == (b"", True, [True])


def test_without_an_answer_all_goes_straight_on() -> None:
    transport = Recording()
    assert HandedOnTransport(transport, b"").write == transport.write
