"""The end of a connection whose peer may still send, and may take long to read.

A socket that is closed with bytes unread resets the connection, and asyncio's TLS aborts one whose peer sends
after our end. Either way the peer loses what it has not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

from peeklock.server.net.sockets import end_output

LINGER_S = 2.0
"""How long we read on after our end of the stream. Our choice: two round trips on any path."""

END_S_MAX = 30.0
"""How long a closed connection may take to drain: a peer that stops reading would keep it. Our choice."""

ANSWER_S = 0.25
"""For the answer to the end of TLS of a peer that has all. Our choice: a round trip on most paths."""


class Ending:
    """Ends our half of a stream, then the connection. Its protocol reads on meanwhile, and drops what comes.

    The connection ends when the peer ends its half; or when the system of the peer has all that was written,
    and the peer sends nothing more.
    """

    def __init__(self, transport: asyncio.Transport, linger_s: float) -> None:
        """Begin; `linger_s`: before the first look whether the peer has all."""
        self._transport = transport
        self._heard = False
        later = asyncio.get_running_loop().call_later
        self._cut = later(END_S_MAX, transport.abort)
        self._next = later(linger_s, self._look)
        end_output(transport)

    def heard(self) -> None:
        """Remember that the peer still sends."""
        self._heard = True

    def cancel(self) -> None:
        """Look no more: the connection is lost."""
        self._cut.cancel()
        self._next.cancel()

    def _look(self) -> None:
        transport = self._transport
        heard, self._heard = self._heard, False
        wait_s = LINGER_S
        if not unread_bytes(transport):
            if transport.is_closing():  # the end of TLS is not answered: clients that read only when used
                transport.abort()
                return
            if not heard:
                transport.close()
                wait_s = ANSWER_S
        self._next = asyncio.get_running_loop().call_later(wait_s, self._look)


def unread_bytes(transport: asyncio.Transport) -> int:
    """Return how many written bytes have not reached the system of the peer, as far as ours tells."""
    return transport.get_write_buffer_size() or _queued_bytes(transport)


def _queued_bytes(transport: asyncio.Transport) -> int:
    """Return what our system keeps for the peer: TLS counts none of the bytes that it has encrypted."""
    sock = transport.get_extra_info("socket")
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):  # it is closed, or has none; macOS does not tell
        return 0
    return int(struct.unpack("i", answer)[0])
