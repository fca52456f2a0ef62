"""Transfers and dispositions from the peer of a session, and the incoming window: the hot path of receiving.

Transfers and dispositions in their usual encodings, as list8 or list32, are read inline. The fields after the
delivery-tag (or after the range of a disposition) are the same bytes in nearly every frame: a table has what
they decode to. Anything unusual returns False, and the general decoder reads the frame (`on_transfer`,
`on_disposition`).

The window is counted in frames and topped up at half. A peer may overrun it or its credit, or count ids by
delivery instead of by frame: the official Python client does (wire contract 2.7, 2.8).
Source: OASIS AMQP 1.0 sections 2.5.6, 2.6.12, 2.7.5 and 2.7.6.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from .codec import DecodeError, decode_typed
from .composites import Performative
from .errors import INVALID_FIELD, NOT_ALLOWED, RemoteProtocolError, Scope
from .events import DeliveryOversized, DeliveryReceived, DispositionReceived, Event
from .link import Link
from .outgoing import Outgoing
from .performatives import Accepted, DeliveryState, Modified, Rejected, Released, decode_state, encode_flow
from .serial import HALF, MASK
from .types import RECEIVER, SENDER, Role

_NULL: Final = 0x40
_LIST8: Final = 0xC0
_U32: Final = struct.Struct(">I").unpack_from
_LIST32: Final = struct.Struct(">II").unpack_from
"""Size and count of a list32, after its constructor."""

TAIL_BYTES_MAX: Final = 64
TAILS_MAX: Final = 32
"""Bytes and number of remembered tails of each kind per connection. Our choice: a client uses a handful."""

TransferTail = tuple[int, int, bool]
"""Number of fields, message-format, settled: of a delivery in one frame, without a state."""

DispositionTail = tuple[int, bool, DeliveryState | None]
"""Number of fields, settled, state."""


class Tails:
    """Decoded ends of this peer's transfers and dispositions."""

    __slots__ = ("dispositions", "transfers")

    def __init__(self) -> None:
        self.transfers: dict[bytes, TransferTail] = {}
        self.dispositions: dict[bytes, DispositionTail] = {}


class Incoming:
    """See the module docstring."""

    __slots__ = (
        "channel",
        "disposition_tails",
        "last_delivery_id",
        "links",
        "next_id_at_top_up",
        "outgoing",
        "transfer_tails",
        "window",
        "window_left",
        "window_low",
    )

    def __init__(
        self,
        channel: int,
        links: dict[int, Link],
        outgoing: Outgoing,
        tails: Tails,
        window: int,
        next_id: int,
    ) -> None:
        self.channel = channel
        self.links = links
        self.outgoing = outgoing
        self.transfer_tails = tails.transfers
        self.disposition_tails = tails.dispositions
        self.window = window
        self.window_low = window // 2
        self.window_left = window
        self.next_id_at_top_up = next_id
        self.last_delivery_id = -1

    @property
    def next_incoming_id(self) -> int:
        """The transfer-id of the next frame (AMQP 2.5.6)."""
        return (self.next_id_at_top_up + self.window - self.window_left) & MASK

    def begun(self, next_outgoing_id: int) -> None:
        """Count from the peer's first transfer-id."""
        self.next_id_at_top_up = next_outgoing_id

    def flow(self, link: Link | None = None, *, drain: bool = False, echo: bool = False) -> None:
        """Send a flow of the session, or of `link`; every flow resets the window to its full size."""
        self.next_id_at_top_up = self.next_incoming_id
        self.window_left = self.window
        outgoing = self.outgoing
        outgoing.flush_disposition()
        window = (self.next_id_at_top_up, self.window, outgoing.next_outgoing_id, outgoing.window)
        if link is None:
            body = encode_flow(*window, echo=echo)
        else:
            body = encode_flow(*window, link.handle, link.delivery_count, link.credit, drain, echo)
        outgoing.output.frame(self.channel, body)

    def count_frame(self) -> None:
        """Count one transfer frame against the window."""
        self.window_left -= 1
        if self.window_left <= self.window_low:
            self.flow()

    def transfer(self, buf: bytes, position: int, end: int, events: list[Event]) -> bool:
        """Read a transfer whose list begins at `position`; False leaves it to the general decoder.

        IndexError and struct.error mean False.
        """
        if buf[position] == _LIST8:
            payload_start = position + 2 + buf[position + 1]
            count = buf[position + 2]
            at = position + 3
        else:
            size, count = _LIST32(buf, position + 1)
            payload_start = position + 5 + size
            at = position + 9
        handle, delivery_id, at = _two_uints(buf, at)
        link = self.links.get(handle)
        if link is None or not link.fast or delivery_id < 0 or buf[at] != 0xA0:
            return False
        tail_start = at + 2 + buf[at + 1]
        if not tail_start <= payload_start <= end:
            return False
        tail = self.transfer_tails.get(buf[tail_start:payload_start])
        if tail is None:
            tail = self._learn_transfer_tail(buf, tail_start, payload_start, count)
            if tail is None:
                return False
        if tail[0] != count or end - payload_start > link.size_bytes_max:
            return False
        self.window_left -= 1
        if self.window_left <= self.window_low:
            self.flow()
        link.counted += 1
        self.last_delivery_id = delivery_id
        events.append(
            DeliveryReceived(
                self.channel,
                link.handle,
                delivery_id,
                buf[at + 2 : tail_start],
                tail[1],
                tail[2],
                None,
                buf[payload_start:end],
            )
        )
        return True

    def _learn_transfer_tail(self, buf: bytes, start: int, end: int, count: int) -> TransferTail | None:
        """Decode the fields after the tag; return None unless the delivery is plain and in one frame."""
        if not 3 <= count <= 11 or not 0 <= end - start <= TAIL_BYTES_MAX:
            return None
        fields = _decode_fields(buf, start, end, count - 3)
        if fields is None:
            return None
        fields += [None] * (11 - count)
        message_format, settled, more, rcv_settle_mode, state, resume, aborted, batchable = fields
        flags = (settled, more, resume, aborted, batchable)
        if any(flag is not None and type(flag) is not bool for flag in flags):
            return None
        if more or resume or aborted or state is not None or rcv_settle_mode is not None:
            return None
        if message_format is None:
            message_format = 0
        elif not isinstance(message_format, int) or not 0 <= message_format <= MASK:
            return None
        tail = (count, int(message_format), bool(settled))
        if len(self.transfer_tails) >= TAILS_MAX:
            self.transfer_tails.clear()
        self.transfer_tails[buf[start:end]] = tail
        return tail

    def on_transfer(
        self, link: Link, performative: Performative, payload: bytes, events: list[Event]
    ) -> None:
        """Handle a transfer of any form: part of a delivery, aborted, with a state, oversized.

        Raises:
            RemoteProtocolError: of the link, or of the connection if too many bytes are unfinished.
        """
        self.count_frame()
        _, delivery_id, tag, message_format, settled, more, _, state, _, aborted, _ = performative.fields
        if link.role is SENDER:
            reason = "transfer on a link whose peer is the receiver"
            raise RemoteProtocolError(NOT_ALLOWED, reason, Scope.LINK)
        partial = link.continue_partial(delivery_id, tag, message_format)
        self.last_delivery_id = partial.delivery_id
        if aborted:
            link.drop_partial()
            link.fast = True
            link.counted += 1  # AMQP 2.6.7: an aborted delivery counts
            return
        if settled:
            partial.settled = True
        if state is not None:
            partial.take_state(decode_state(state))
        link.partial = partial
        link.fast = False
        link.add_chunk(partial, payload)
        if more:
            return
        whole = link.finish_partial(partial)
        link.fast = True
        link.counted += 1
        head = (self.channel, link.handle, partial.delivery_id, partial.tag)
        settled, state = partial.settled, partial.state
        if partial.oversized:
            events.append(DeliveryOversized(*head, settled, state, link.size_bytes_max, whole))
        else:
            events.append(DeliveryReceived(*head, partial.message_format, settled, state, whole))

    def disposition(self, buf: bytes, position: int, end: int, events: list[Event]) -> bool:
        """Read a disposition whose list begins at `position`; False leaves it to the general decoder.

        IndexError and struct.error mean False.
        """
        if buf[position] == _LIST8:
            list_end = position + 2 + buf[position + 1]
            count = buf[position + 2]
            at = position + 3
        else:
            size, count = _LIST32(buf, position + 1)
            list_end = position + 5 + size
            at = position + 9
        if list_end != end:
            return False
        code = buf[at]
        if code == 0x41:
            role = RECEIVER
        elif code == 0x42:
            role = SENDER
        else:
            return False
        first, last, at = _two_uints(buf, at + 1)
        if last < 0 and buf[at] == _NULL:
            last = first
            at += 1
        if first < 0 or last < 0 or at > end or (last - first) & MASK >= HALF:
            return False
        tail = self.disposition_tails.get(buf[at:end])
        if tail is None:
            tail = self._learn_disposition_tail(buf, at, end, count)
            if tail is None:
                return False
        if tail[0] != count:
            return False
        before = events[-1] if events else None
        if (
            type(before) is DispositionReceived
            and first == before.last + 1
            and first == last
            and role is before.role
            and tail[2] is before.state
            and tail[1] is before.settled
            and self.channel == before.channel
            and last <= (self.outgoing.last_delivery_id if role is RECEIVER else self.last_delivery_id)
        ):
            # Most clients send a frame for each delivery: one event reports a run of them, within the span of
            # serial numbers. The owner has not seen it: each read makes its own list.
            before.last = last
        else:
            self._disposition(role, first, last, tail[1], tail[2], events)
        return True

    def _learn_disposition_tail(self, buf: bytes, start: int, end: int, count: int) -> DispositionTail | None:
        """Decode the fields after the range; return None unless deliveries may share the state."""
        if not 3 <= count <= 6 or not 0 <= end - start <= TAIL_BYTES_MAX:
            return None
        fields = _decode_fields(buf, start, end, count - 3)
        if fields is None:
            return None
        settled, value, batchable = fields + [None] * (6 - count)
        if any(flag is not None and type(flag) is not bool for flag in (settled, batchable)):
            return None
        state = decode_state(value)
        if not _shareable(state):
            return None
        tail = (count, bool(settled), state)
        if len(self.disposition_tails) >= TAILS_MAX:
            self.disposition_tails.clear()
        self.disposition_tails[buf[start:end]] = tail
        return tail

    def on_disposition(self, performative: Performative, events: list[Event]) -> None:
        """Handle a disposition of any form.

        Raises:
            RemoteProtocolError: a wrong state, or a range that runs backwards.
        """
        receiver, first, last, settled, state, _ = performative.fields
        role = RECEIVER if receiver else SENDER
        last = first if last is None else last
        self._disposition(role, first, last, bool(settled), decode_state(state), events)

    def _disposition(
        self,
        role: Role,
        first: int,
        last: int,
        settled: bool,
        state: DeliveryState | None,
        events: list[Event],
    ) -> None:
        """Report a disposition, its range cut to the delivery-ids this session has used."""
        newest = self.outgoing.last_delivery_id if role is RECEIVER else self.last_delivery_id
        if newest < 0:
            return  # nothing was sent that way yet
        if first != last:
            if (last - first) & MASK >= HALF:
                # It runs backwards, or covers half of all ids.
                reason = f"disposition of the range {first} to {last}"
                raise RemoteProtocolError(INVALID_FIELD, reason, Scope.SESSION)
            if (last - newest) & MASK < HALF:
                last = newest
        if (newest - first) & MASK >= HALF:
            return  # about future deliveries
        events.append(DispositionReceived(self.channel, role, first, last, settled, state))


def _two_uints(buf: bytes, at: int) -> tuple[int, int, int]:
    """Return two uints, each in one of three encodings, and the offset after them. Anything else is -1, with
    the offset where it begins."""
    first = second = -1
    code = buf[at]
    if code == 0x70:
        first, at = _U32(buf, at + 1)[0], at + 5
    elif code == 0x52:
        first, at = buf[at + 1], at + 2
    elif code == 0x43:
        first, at = 0, at + 1
    else:
        return first, second, at
    code = buf[at]
    if code == 0x70:
        second, at = _U32(buf, at + 1)[0], at + 5
    elif code == 0x52:
        second, at = buf[at + 1], at + 2
    elif code == 0x43:
        second, at = 0, at + 1
    return first, second, at


def _decode_fields(buf: bytes, position: int, end: int, count: int) -> list[Any] | None:
    """Return exactly `count` values that fill `position..end`, or None."""
    fields: list[Any] = []
    try:
        for _ in range(count):
            value, position = decode_typed(buf, position)
            fields.append(value)
    except DecodeError:
        return None
    return fields if position == end else None


def _shareable(state: DeliveryState | None) -> bool:
    """Whether deliveries may share this value: nothing in it is mutable."""
    if state is None or isinstance(state, (Accepted, Released)):
        return True
    if isinstance(state, Modified):
        return state.message_annotations is None
    return isinstance(state, Rejected) and state.error is None
