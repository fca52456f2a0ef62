"""A relay that writes down what a client asks of a broker: AMQP performatives and HTTP requests.

Owns: one log per connection, and their reading. Must not know: what is allowed.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from peeklock.amqp.codec import decode_typed, read_list_header
from peeklock.amqp.composites import (
    ATTACH,
    DISPOSITION,
    FLOW,
    NAMES,
    SASL_INIT,
    TRANSFER,
    code_of,
    composite_name,
    field_names,
    performative_code,
)
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Described
from tests.spark.relay import Relay

FIGURES, NOWHERE = b"GET /metrics/entities", b"GET /absent/entities-"
"""A page of peeklock alone, and an address of the same length that no broker has."""


@dataclass
class Asked:
    """What clients asked for."""

    performatives: set[str] = field(default_factory=set)
    mechanisms: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    properties: set[str] = field(default_factory=set)
    """Keys of the properties of links, and of flows."""
    filters: set[str] = field(default_factory=set)
    capabilities: set[str] = field(default_factory=set)
    """Of connections, links, sources and targets, offered and desired."""
    operations: set[str] = field(default_factory=set)
    """Of requests to `$cbs` and `$management`."""
    annotations: set[str] = field(default_factory=set)
    """Keys of annotations of sent messages."""
    outcomes: set[str] = field(default_factory=set)
    requests: set[tuple[str, str]] = field(default_factory=set)
    """Method and target of HTTP requests."""


class Witness(Relay):
    """Forwards to a broker and writes down. What peeklock alone has over HTTP is hidden."""

    def __init__(self, port: int) -> None:
        self._logs: list[bytearray] = []
        super().__init__(port)

    def read(self) -> Asked:
        """Return what was asked for until now."""
        asked = Asked()
        for log in map(bytes, self._logs):
            if log[:4] == b"AMQP":
                _read_frames(asked, log)
            else:
                found = re.findall(rb"^([A-Z]+) (/\S*) HTTP/1.1\r$", log, re.MULTILINE)
                asked.requests |= {(method.decode(), target.decode()) for method, target in found}
        return asked

    def _copy(self, source: socket.socket, target: socket.socket, log: bytearray | None) -> None:
        if log is None:
            super()._copy(source, target, None)
            return
        own = bytearray()
        self._logs.append(own)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                own += data
                target.sendall(data.replace(FIGURES, NOWHERE))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _read_frames(asked: Asked, log: bytes) -> None:
    """Note the frames of a connection: what each means depends on those before it."""
    at = 0
    addresses: dict[tuple[int, int], str] = {}
    """Of the targets of links, by channel and handle."""
    while at < len(log):
        if log[at : at + 4] == b"AMQP":
            at += 8
            continue
        size, offset, _, channel = struct.unpack_from(">IBBH", log, at)
        body = log[at + 4 * offset : at + size]
        at += size
        if not body:
            continue
        code, fields, payload = _performative(body)
        asked.performatives.add(NAMES[code])
        asked.capabilities |= _capabilities(fields)
        if code == SASL_INIT:
            asked.mechanisms.add(str(fields["mechanism"]))
        elif code == ATTACH:
            is_receiver = fields["role"]
            for end in ("source", "target"):
                inside = _composite(fields[end])
                asked.capabilities |= _capabilities(inside)
                asked.filters |= set(map(str, inside.get("filter") or ()))
                if is_receiver == (end == "source"):
                    asked.addresses.add(_address(inside))
            addresses[channel, fields["handle"]] = _address(_composite(fields["target"]))
        elif code == DISPOSITION:
            asked.outcomes.add(composite_name(code_of(fields["state"].descriptor)))
        elif code == TRANSFER and payload:
            _read_message(asked, addresses[channel, fields["handle"]], payload)
        if code in (ATTACH, FLOW):
            asked.properties |= set(map(str, fields.get("properties") or ()))


def _read_message(asked: Asked, address: str, payload: bytes) -> None:
    sections = scan(payload)
    if address.endswith(("$cbs", "$management")):
        asked.operations.add(sections.decode_application_properties()["operation"])
    else:
        asked.annotations |= set(map(str, sections.decode_message_annotations()))


def _performative(body: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Return code, fields, and what follows."""
    code, at = performative_code(body)
    at, end, count = read_list_header(body, at)
    values = []
    for _ in range(count):
        value, at = decode_typed(body, at)
        values.append(value)
    return code, dict(zip(field_names(code), values, strict=False)), body[end:]


def _composite(value: Any) -> dict[str, Any]:
    """Return the fields of a source or target."""
    assert isinstance(value, Described)
    return dict(zip(field_names(code_of(value.descriptor)), value.value, strict=False))


def _address(end: dict[str, Any]) -> str:
    return str(end.get("address", "(coordinator)"))  # of transactions: it has none


def _capabilities(fields: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for name in ("offered-capabilities", "desired-capabilities", "capabilities"):
        value = fields.get(name)
        if value is not None:
            found |= set(map(str, value if isinstance(value, list) else [value]))
    return found
