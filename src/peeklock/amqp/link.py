"""One link, in both roles: its credit, its delivery-count and the delivery it is reassembling.

`states` has the table of its states. A link that the peer requests begins at PENDING, our own at ATTACH_SENT.
In DETACH_SENT the peer may still send on the handle, or attach again on it: a peer that was refused with a
null terminus never answers our detach (wire contract 2.2). The session drops a link that both ends have
detached.

Credit: since the attach, the receiver has granted `granted` deliveries and `counted` were sent.
delivery-count = initial + counted, link-credit = granted - counted (AMQP 2.6.7): two plain counters instead
of four serial numbers.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .errors import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED, RemoteProtocolError, Scope
from .performatives import DeliveryState, TransactionalState
from .serial import HALF, MASK, distance
from .states import LINK_TRANSITIONS, LinkMove, LinkState
from .types import PEER_TAG_BYTES_MAX, Encoded, Role

CREDIT_MAX: Final = HALF - 1
"""Most deliveries that a peer's credit allows; the wire has up to 2^32-1. Our choice: the span of serial
numbers (RFC 1982), so that delivery-count + link-credit stays ahead of delivery-count."""

HEAD_BYTES_MAX: Final = 4096
"""Bytes kept of an oversized delivery. Our choice: they contain the properties of every client's requests, so
that the request can be answered."""

NULL: Final = Encoded(b"\x40")


class ReassemblyBudget:
    """Limit on the bytes of unfinished deliveries, of one connection or of all that share a budget."""

    __slots__ = ("limit", "shared", "used")

    CHUNK_OVERHEAD: ClassVar[int] = 64
    """Bytes of a chunk beyond its payload (object header, list entry): tiny frames count too."""

    def __init__(self, limit: int, shared: ReassemblyBudget | None = None) -> None:
        """`shared` is the budget of all connections; None = no common limit."""
        self.limit = limit
        self.shared = shared
        self.used = 0

    def take(self, chunk: bytes) -> None:
        """Count a chunk; a refused one is not counted.

        Raises:
            RemoteProtocolError: resource-limit-exceeded, for the connection.
        """
        size = len(chunk) + self.CHUNK_OVERHEAD
        shared = self.shared
        if self.used + size > self.limit:
            raise _over_budget(f"{self.limit} bytes on this connection")
        if shared is not None:
            if shared.used + size > shared.limit:
                raise _over_budget(f"{shared.limit} bytes on all connections")
            shared.used += size
        self.used += size

    def give_back(self, chunks: list[bytes]) -> None:
        """Uncount chunks that were joined or dropped."""
        size = sum(map(len, chunks)) + self.CHUNK_OVERHEAD * len(chunks)
        self.used -= size
        if self.shared is not None:
            self.shared.used -= size

    def move(self, limit: int, shared: ReassemblyBudget | None) -> None:
        """Move the used bytes to another limit and another shared budget."""
        if self.shared is not None:
            self.shared.used -= self.used
        if shared is not None:
            shared.used += self.used
        self.limit = limit
        self.shared = shared


class Partial:
    """A delivery whose last frame has not arrived."""

    __slots__ = ("chunks", "delivery_id", "message_format", "oversized", "settled", "size", "state", "tag")

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = False
        self.state: DeliveryState | None = None
        self.chunks: list[bytes] = []
        self.size = 0
        self.oversized = False

    def head(self, chunk: bytes) -> bytes:
        """Return the first `HEAD_BYTES_MAX` bytes received, `chunk` last."""
        head = b""
        for part in (*self.chunks, chunk):
            head += part[: HEAD_BYTES_MAX - len(head)]
            if len(head) == HEAD_BYTES_MAX:
                break
        return head

    def take_state(self, state: DeliveryState | None) -> None:
        """Set the state; any frame of the delivery may carry it (AMQP 2.7.5, state).

        Raises:
            RemoteProtocolError: the delivery leaves its transaction.
        """
        before = self.state
        if isinstance(before, TransactionalState):
            if not isinstance(state, TransactionalState) or state.txn_id != before.txn_id:
                raise _invalid("the transaction changes inside a delivery")
        self.state = state


class Link:
    """One end of a link; `role` is ours, `handle` ours, `remote_handle` the peer's."""

    __slots__ = (
        "budget",
        "counted",
        "draining",
        "drains",
        "echo_wanted",
        "fast",
        "granted",
        "handle",
        "initial_delivery_count",
        "name",
        "partial",
        "prefix",
        "prefix_tag_bytes",
        "rcv_settle_mode",
        "remote_handle",
        "role",
        "size_bytes_max",
        "snd_settle_mode",
        "source_raw",
        "state",
        "target_raw",
    )

    def __init__(
        self,
        name: str,
        handle: int,
        role: Role,
        state: LinkState,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        budget: ReassemblyBudget,
    ) -> None:
        self.budget = budget
        self.name = name
        self.handle = handle
        self.remote_handle = -1
        self.role = role
        self.state = state
        self.snd_settle_mode = snd_settle_mode
        self.rcv_settle_mode = rcv_settle_mode
        self.source_raw = NULL
        self.target_raw = NULL
        self.initial_delivery_count = 0
        self.granted = 0
        self.counted = 0
        self.draining = False
        self.drains = False
        """We have asked to drain: the sender may count deliveries that it never made (AMQP 2.6.7)."""
        self.echo_wanted = False
        self.size_bytes_max = 0
        self.partial: Partial | None = None
        self.fast = role is Role.RECEIVER
        """A transfer may take the fast path: we receive, and no delivery is unfinished."""
        self.prefix = b""
        self.prefix_tag_bytes = -1

    @property
    def delivery_count(self) -> int:
        """The delivery-count on the wire. Not a message's delivery-count."""
        return (self.initial_delivery_count + self.counted) & MASK

    @property
    def credit(self) -> int:
        """Deliveries that may still be sent, by us or by the peer."""
        left = self.granted - self.counted
        return left if left > 0 else 0

    def granted_by_peer(self, delivery_count: int | None, credit: int) -> None:
        """Set the credit from the peer's view of the delivery-count (wire contract 2.7).

        Deliveries that the peer has not seen count against its credit. A delivery-count ahead of ours adds
        nothing: a receiver's is "the last known value" of the sender's (AMQP 2.6.7).
        """
        if delivery_count is None:
            unseen = self.counted  # the peer has not seen our attach: AMQP 2.6.7, delivery-count
        else:
            unseen = max(0, distance(delivery_count, self.delivery_count))
        self.granted = self.counted + min(max(0, credit - unseen), CREDIT_MAX)

    def move(self, move: LinkMove) -> None:
        """Go to the next state. Raises: KeyError for an illegal move, a defect of ours."""
        self.state = LINK_TRANSITIONS[self.state][move]

    def begin_detach(self) -> None:
        """Stop the link and drop its unfinished delivery."""
        self.move(LinkMove.DETACH)
        self.fast = False
        self.drop_partial()
        self.drop_termini()

    def drop_termini(self) -> None:
        """Forget the encoded source and target: their attach is written."""
        self.source_raw = self.target_raw = NULL

    def drop_partial(self) -> None:
        """Forget the unfinished delivery."""
        if self.partial is not None:
            self.budget.give_back(self.partial.chunks)
            self.partial = None

    def continue_partial(
        self, delivery_id: int | None, tag: bytes | None, message_format: int | None
    ) -> Partial:
        """Return the delivery of a transfer: the unfinished one, or else a new one.

        Raises:
            RemoteProtocolError: a first frame without id or tag, or a continuation that names another
            delivery.
        """
        partial = self.partial
        if partial is None:
            if delivery_id is None or tag is None:
                raise _invalid("first transfer of a delivery without delivery-id or delivery-tag")
            if len(tag) > PEER_TAG_BYTES_MAX:
                raise _invalid(f"delivery-tag of {len(tag)} bytes, at most {PEER_TAG_BYTES_MAX} are allowed")
            return Partial(delivery_id, tag, message_format or 0)
        # Repeating them is legal, and the Python client does; changing them is not (AMQP 2.7.5).
        if delivery_id is not None and delivery_id != partial.delivery_id:
            raise _invalid(f"delivery {delivery_id} begins inside delivery {partial.delivery_id}")
        if tag is not None and tag != partial.tag:
            raise _invalid("delivery-tag changes inside a delivery")
        return partial

    def add_chunk(self, partial: Partial, chunk: bytes) -> None:
        """Keep a frame's payload; only the head of an oversized delivery.

        Raises:
            RemoteProtocolError: the connection holds too many unfinished bytes.
        """
        partial.size += len(chunk)
        if partial.oversized:
            return
        if partial.size > self.size_bytes_max:
            partial.oversized = True
            head = partial.head(chunk)
            self.budget.give_back(partial.chunks)
            partial.chunks.clear()
            chunk = head
        if chunk:
            self.budget.take(chunk)
            partial.chunks.append(chunk)

    def finish_partial(self, partial: Partial) -> bytes:
        """Return the joined chunks."""
        self.partial = None
        self.budget.give_back(partial.chunks)
        return partial.chunks[0] if len(partial.chunks) == 1 else b"".join(partial.chunks)


def _over_budget(limit: str) -> RemoteProtocolError:
    return RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, f"unfinished deliveries exceed {limit}")


def _invalid(description: str) -> RemoteProtocolError:
    return RemoteProtocolError(INVALID_FIELD, description, Scope.LINK)
