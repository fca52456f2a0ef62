"""Frame layout, protocol headers, and limits on a peer.

Source: OASIS AMQP 1.0 sections 2.2 and 2.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

FRAME_SIZE_MIN: Final = 512
"""Bytes of a frame that every peer accepts. Source: AMQP 2.8.19 MIN-MAX-FRAME-SIZE."""

UINT_MAX: Final = 0xFFFFFFFF

_HEADER_PACK: Final = struct.Struct(">IBBH").pack


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on the peer of one connection (R-05). `Connection.set_limits` replaces them."""

    sasl_frame_bytes: int = 4096
    """Bytes of a SASL frame. Our choice: a long PLAIN response exceeds the 512 of AMQP 5.3.1."""

    handle_max: int = 1023
    """Highest handle of a session, sent in `begin`. Source: at least 255 (wire contract 1.5); cross-entity
    transactions of the .NET client open many links on one session."""

    sessions: int = 5000
    """Sessions of a connection; one more ends it. Our choice: as many as channels (4999 + 1)."""

    links: int = 5000
    """Links of a connection. Further ones are refused; as many unanswered refusals end the connection. Our
    choice: as many as sessions, since clients use one link a session."""

    name_length: int = 4096
    """Characters of a container-id, host name, link name or address. Our choice: entity names have 260."""

    properties_bytes: int = 16384
    """Encoded bytes of the properties of an open, begin or attach, and of a source or target. Our choice."""

    depth: int = 64
    """Levels of nesting in a performative. Source: the limit of the official Python client."""

    reassembly_bytes: int = 256 * 1024 * 1024
    """Bytes of unfinished multi-frame deliveries on all links. Our choice, for a client: over two messages of
    the largest size (100 MB). A server sets its own."""

    message_bytes: int = 100 * 1024 * 1024 + 65536
    """Bytes of one delivery on a link without max-message-size. Source: Premium's 100 MB, and overhead."""

    incoming_window: int = 5000
    """Incoming window of a session, in frames; topped up at half. Source: wire contract 1.5."""

    idle_timeout_ms_min: int = 100
    """Shortest idle time-out accepted from a peer. Our choice: below it, empty frames are a flood."""


def frame(channel: int, body: bytes | bytearray, frame_type: int = AMQP_FRAME) -> bytes:
    """Return `body` with its frame header."""
    return _HEADER_PACK(8 + len(body), 2, frame_type, channel) + body
