"""Frame layout: the 8-byte header, the protocol headers and the limits on what a peer may send.

Must not know what a frame body means. Source: OASIS AMQP 1.0 sections 2.2 and 2.3.
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
"""Bytes of a frame every peer accepts. Source: AMQP 2.8.19 MIN-MAX-FRAME-SIZE."""

UINT_MAX: Final = 0xFFFFFFFF

_HEADER_PACK = struct.Struct(">IBBH").pack


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on what a peer can send, one connection each (R-05). `Connection.set_limits` replaces them."""

    sasl_frame_bytes: int = 4096
    """Bytes of a SASL frame. Our choice: AMQP 5.3.1 says 512, a long PLAIN response does not fit."""

    handle_max: int = 1023
    """Highest handle of a session, sent in `begin`. Source: at least 255 (wire contract 1.5); room for one
    session with many links, as the cross-entity transactions of the .NET client have."""

    sessions: int = 5000
    """Sessions of a connection; one more ends it. Our choice: as many as channels (4999 + 1)."""

    links: int = 5000
    """Links of a connection. Further ones are refused; a connection with as many refused ones whose detach
    the peer has not answered is ended. Our choice: as many as sessions, each client using one link a
    session."""

    name_length: int = 4096
    """Characters of a container-id, host name, link name or address. Our choice: entity names have at most
    260."""

    properties_bytes: int = 16384
    """Encoded bytes of the properties of an open, begin or attach, and of a source or target. Our choice."""

    depth: int = 64
    """Levels of nesting in a performative. Source: the limit of the official Python client."""

    reassembly_bytes: int = 256 * 1024 * 1024
    """Bytes of unfinished multi-frame deliveries on all links. Our choice, for a client: two messages of the
    largest size (100 MB) and more. A server says its own."""

    message_bytes: int = 100 * 1024 * 1024 + 65536
    """Bytes of one delivery on a link without a max-message-size yet. Source: Premium's 100 MB, and its
    overhead."""

    incoming_window: int = 5000
    """Transfer frames of a session we announce; topped up at half. Source: wire contract 1.5."""

    idle_timeout_ms_min: int = 100
    """Least idle time-out of a peer we serve, ms. Our choice: below it, empty frames would be a flood."""


def frame(channel: int, body: bytes | bytearray, frame_type: int = AMQP_FRAME) -> bytes:
    """Put the frame header before `body`."""
    return _HEADER_PACK(8 + len(body), 2, frame_type, channel) + body
