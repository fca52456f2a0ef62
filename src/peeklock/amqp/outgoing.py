"""Output of a connection, and deliveries and dispositions of its sessions: the hot path of sending.

A gate holds frames back until our `open` is sent: the official Python client pipelines open, begin and
attach, so their answers exist before the owner has answered the open.

A delivery that fits one frame is sent at once if the window is open. Everything else passes through `held`,
in order: a session has one sequence of transfer-ids, so a closed window stops all its links alike.
Dispositions of adjacent deliveries with the same state become one range, written before any other
disposition.
Source: OASIS AMQP 1.0 sections 2.5.6, 2.7.5, 2.7.6 and 2.6.7.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .errors import FRAME_SIZE_TOO_SMALL, AmqpError, LocalProtocolError
from .frames import FRAME_SIZE_MIN, UINT_MAX, frame
from .link import Link
from .performatives import ACCEPTED, ACCEPTED_BYTES, DeliveryState, encode_disposition, encode_state
from .serial import HALF, MASK, distance
from .types import RECEIVER, TAG_BYTES_MAX, Role

_HEAD: Final = struct.Struct(">I16sI").pack
"""Frame size, the link's prefix, delivery-id."""

_PREFIX: Final = struct.Struct(">HHIBBBIB").pack
"""Rest of the frame header, 00 53 14 c0, list size, number of fields, handle, constructor of the id."""

_CONTINUATION: Final = struct.Struct(">IHHIBBBIBBBBB").pack
_DISPOSITION: Final = struct.Struct(">IHHIBBBBIBIB").pack

_TRANSFER_LIST8: Final = 0x005314C0
_DISPOSITION_LIST8: Final = 0x005315C0
_TAG_HEADS: Final = [bytes((0xA0, size)) for size in range(TAG_BYTES_MAX + 1)]

_UNSETTLED: Final = b"\x43\x42"
_SETTLED: Final = b"\x43\x41"
"""message-format 0 (explicit, wire contract 2.8) and settled."""


_TRANSFER_BYTES_MAX: Final = 40 + TAG_BYTES_MAX
"""Bytes of a transfer frame without payload and state: 8 header, 3 descriptor, 9 list32, 5 handle, 5 id,
2 + 32 tag, 5 format, 2 flags, 1 settle mode."""

_FRAME_BYTES_CAP: Final = 1024 * 1024
"""Bytes of the largest frame we send, even if the peer accepts more. Our choice: some peers say 4 GiB."""


class Output:
    """Output queue of one connection; sizes in bytes."""

    __slots__ = (
        "closed",
        "failure",
        "frame_size_max",
        "front",
        "gate_open",
        "held_size",
        "merging",
        "payload_max",
        "pieces",
        "size",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.front: list[bytes] = []
        """Pieces that do not wait for the gate."""
        self.merging: list[Outgoing] = []
        """Sessions with a disposition that others may still join; each adds itself."""
        self.gate_open = False
        self.size = 0
        self.held_size = 0
        """Bytes of payload that wait for the window of a session."""
        self.closed = False
        self.frame_size_max = UINT_MAX
        """The peer's max-frame-size; unlimited before its `open`."""
        self.payload_max = FRAME_SIZE_MIN - _TRANSFER_BYTES_MAX
        """Bytes of payload that fit into one transfer frame with any tag."""
        self.failure: AmqpError | None = None
        """Set when a frame does not fit: the connection must end."""

    def peer_opened(self, frame_size_max: int) -> None:
        """Set the peer's max-frame-size."""
        self.frame_size_max = frame_size_max
        self.payload_max = min(frame_size_max, _FRAME_BYTES_CAP) - _TRANSFER_BYTES_MAX

    def frame(self, channel: int, body: bytes) -> None:
        """Queue one AMQP frame."""
        if self.closed:
            return
        size = len(body) + 8
        if size > self.frame_size_max:
            reason = f"frame of {size} bytes, the peer's max-frame-size is {self.frame_size_max}"
            self.failure = AmqpError(FRAME_SIZE_TOO_SMALL, reason)
            return
        self.pieces.append(frame(channel, body))
        self.size += size

    def raw(self, data: bytes) -> None:
        """Queue bytes before the gate: headers, SASL frames, `open`, empty frames."""
        if not self.closed and data:
            (self.pieces if self.gate_open else self.front).append(data)
            self.size += len(data)

    def drop_gated(self) -> None:
        """Drop the frames that wait for the gate: `close` replaces them."""
        self.size -= sum(map(len, self.pieces))
        self.pieces.clear()

    def take(self) -> bytes:
        """Return and forget everything that may be sent now."""
        for outgoing in self.merging:
            outgoing.flush_disposition()
        self.merging.clear()
        data = b""
        if self.front:
            data = b"".join(self.front)
            self.front.clear()
        if self.pieces and self.gate_open:
            data = b"".join([data, *self.pieces]) if data else b"".join(self.pieces)
            self.pieces.clear()
        self.size -= len(data)
        return data


@dataclass(slots=True, eq=False)
class _Held:
    """A delivery, or the rest of one, that waits for the window. No payload: the flow that ends a drain."""

    link: Link
    delivery_id: int
    tag: bytes
    payload: bytes | None
    settled: bool
    message_format: int
    state: bytes
    offset: int = 0


_NOTHING_HELD: Final[deque[_Held]] = deque()
"""Shared by sessions that hold nothing: an empty deque takes 760 bytes."""


class Outgoing:
    """Deliveries and dispositions of one session."""

    __slots__ = (
        "channel",
        "held",
        "last_delivery_id",
        "merged_first",
        "merged_last",
        "merged_role",
        "merged_settled",
        "merged_state",
        "merging",
        "next_outgoing_id",
        "output",
        "remote_window",
        "send_drained_flow",
        "window",
    )

    def __init__(self, channel: int, output: Output, window: int) -> None:
        self.channel = channel
        self.output = output
        self.window = window
        self.last_delivery_id = -1
        self.next_outgoing_id = 0
        self.remote_window = 0
        self.held = _NOTHING_HELD
        self.send_drained_flow: Callable[[Link, bool], None] | None = None
        self.merging = False
        self.merged_role = RECEIVER
        self.merged_first = 0
        self.merged_last = 0
        self.merged_state: DeliveryState | None = None
        self.merged_settled = True

    def peer_flow(self, next_incoming_id: int | None, incoming_window: int) -> None:
        """Set the peer's window, and send what it admits (AMQP 2.5.6)."""
        seen = 0 if next_incoming_id is None else next_incoming_id
        if incoming_window >= HALF:
            self.remote_window = HALF  # unlimited: beyond the span of serial numbers
        else:
            self.remote_window = distance(self.next_outgoing_id, (seen + incoming_window) & MASK)
        if self.held:
            self.pump()

    def send(
        self,
        link: Link,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> int:
        """Send a delivery, or hold it; return its delivery-id.

        Raises:
            LocalProtocolError: no credit, or a tag longer than 32 bytes.
        """
        if link.counted >= link.granted:
            raise LocalProtocolError(f"no credit on link {link.name!r}")
        tag_size = len(tag)
        if tag_size > TAG_BYTES_MAX:
            raise LocalProtocolError(f"delivery-tag of {tag_size} bytes, at most {TAG_BYTES_MAX} are allowed")
        size = len(payload)
        output = self.output
        encoded_state = b""
        if state is not None:
            encoded_state = encode_state(state)
            if len(encoded_state) >= output.payload_max:
                raise LocalProtocolError(f"a state of {len(encoded_state)} bytes does not fit into a frame")
        link.counted += 1
        delivery_id = self.last_delivery_id = (self.last_delivery_id + 1) & MASK
        if (
            self.remote_window <= 0
            or size > output.payload_max
            or self.held
            or message_format
            or state is not None
        ):
            self._hold(_Held(link, delivery_id, tag, payload, settled, message_format, encoded_state))
            output.held_size += size
            self.pump()
            return delivery_id
        if link.prefix_tag_bytes != tag_size:
            link.prefix = _PREFIX(
                0x0200, self.channel, _TRANSFER_LIST8, 15 + tag_size, 5, 0x70, link.handle, 0x70
            )
            link.prefix_tag_bytes = tag_size
        head = (
            _HEAD(size + tag_size + 28, link.prefix, delivery_id)
            + _TAG_HEADS[tag_size]
            + tag
            + (_SETTLED if settled else _UNSETTLED)
        )
        output.pieces.append(head)
        output.pieces.append(payload)
        output.size += size + tag_size + 28
        self.remote_window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & MASK
        return delivery_id

    def pump(self) -> None:
        """Write held deliveries as far as the window admits."""
        held = self.held
        while held:
            item = held[0]
            if item.payload is None:
                held.popleft()
                assert self.send_drained_flow is not None
                self.send_drained_flow(item.link, item.settled)
            elif self.remote_window <= 0:
                return
            elif self._write_frame(item, item.payload):
                held.popleft()

    def hold_drained_flow(self, link: Link, echo: bool) -> None:
        """Send the flow that ends a drain after the held deliveries."""
        self._hold(_Held(link, 0, b"", None, echo, 0, b""))
        self.pump()

    def _hold(self, item: _Held) -> None:
        if self.held is _NOTHING_HELD:
            self.held = deque()
        self.held.append(item)

    def drop_link(self, link: Link) -> None:
        """Drop what a link holds."""
        if not self.held:
            return
        kept: deque[_Held] = deque()
        for item in self.held:
            if item.link is not link:
                kept.append(item)
            elif item.payload is not None:
                self.output.held_size -= len(item.payload) - item.offset
        self.held = kept

    def unsent(self) -> list[int]:
        """Return the ids of unsettled deliveries with no frame written."""
        return [
            item.delivery_id
            for item in self.held
            if item.payload is not None and item.offset == 0 and not item.settled
        ]

    def drop_all(self) -> None:
        """Drop everything unwritten: the session is gone."""
        for item in self.held:
            if item.payload is not None:
                self.output.held_size -= len(item.payload) - item.offset
        self.held = _NOTHING_HELD
        self.merging = False

    def _write_frame(self, item: _Held, payload: bytes) -> bool:
        """Write the next frame of a delivery; return whether it was the last."""
        start = item.offset
        room = self.output.payload_max - (len(item.state) if start == 0 else 0)
        end = min(start + max(room, 1), len(payload))
        more = end < len(payload)
        chunk = memoryview(payload)[start:end] if more or start else payload
        head = self._first_head(item, more, end) if start == 0 else self._next_head(item, more, end - start)
        output = self.output
        output.pieces.append(head)
        output.pieces.append(chunk)
        output.size += len(head) + end - start
        output.held_size -= end - start
        item.offset = end
        self.remote_window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & MASK
        return not more

    def _first_head(self, item: _Held, more: bool, size: int) -> bytes:
        fields = struct.pack(
            f">BIBI2s{len(item.tag)}sBIBB",
            0x70,
            item.link.handle,
            0x70,
            item.delivery_id,
            _TAG_HEADS[len(item.tag)],
            item.tag,
            0x70,
            item.message_format,
            0x41 if item.settled else 0x42,
            0x41 if more else 0x42,
        )
        count = 6
        if item.state:
            fields += b"\x40" + item.state
            count = 8
        if len(fields) < 255:
            body = struct.pack(">IBB", _TRANSFER_LIST8, len(fields) + 1, count) + fields
        else:
            body = struct.pack(">III", 0x005314D0, len(fields) + 4, count) + fields
        return struct.pack(">IHH", 8 + len(body) + size, 0x0200, self.channel) + body

    def _next_head(self, item: _Held, more: bool, size: int) -> bytes:
        # Id, tag and format may be omitted (wire contract 2.8). The Python client reads `settled` from the
        # last frame.
        return _CONTINUATION(
            24 + size,
            0x0200,
            self.channel,
            _TRANSFER_LIST8,
            11,
            6,
            0x70,
            item.link.handle,
            0x40,
            0x40,
            0x40,
            0x41 if item.settled else 0x42,
            0x41 if more else 0x42,
        )

    def disposition(
        self, role: Role, first: int, last: int, state: DeliveryState | None, settled: bool
    ) -> None:
        """Queue a disposition, joined to the last one if adjacent and equal."""
        if self.merging:
            if (
                role is self.merged_role
                and settled is self.merged_settled
                and (state is self.merged_state or state == self.merged_state)
            ):
                if first == (self.merged_last + 1) & MASK:
                    self.merged_last = last
                    return
                if last == (self.merged_first - 1) & MASK:
                    self.merged_first = first
                    return
            self.flush_disposition()
        self.merging = True
        self.output.merging.append(self)
        self.merged_role = role
        self.merged_first = first
        self.merged_last = last
        self.merged_state = state
        self.merged_settled = settled

    def flush_disposition(self) -> None:
        """Write the merged range, if any."""
        if not self.merging:
            return
        self.merging = False
        state = ACCEPTED_BYTES if self.merged_state is ACCEPTED else encode_state(self.merged_state)
        size = len(state)
        output = self.output
        if size > 200 or size + 36 > output.frame_size_max:
            output.frame(
                self.channel,
                encode_disposition(
                    self.merged_role,
                    self.merged_first,
                    self.merged_last,
                    self.merged_settled,
                    self.merged_state,
                ),
            )
            return
        head = _DISPOSITION(
            26 + size,
            0x0200,
            self.channel,
            _DISPOSITION_LIST8,
            13 + size,
            5,
            0x41 if self.merged_role is RECEIVER else 0x42,
            0x70,
            self.merged_first,
            0x70,
            self.merged_last,
            0x41 if self.merged_settled else 0x42,
        )
        output.pieces.append(head + state)
        output.size += 26 + size
