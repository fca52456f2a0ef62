"""Moving messages from one entity to another one of the same namespace, in transactions.

All links are on one AMQP session: the coordinator's first, then the receiver, whose entity becomes the via
entity, then the sender to the target. A group of messages is one transaction: declare; the completions and
the transfers, with its id; discharge, once all of them are accepted provisionally, or else with a roll-back.
Several transactions are under way, so that the answers of one are waited for while others go on. The messages
of one travel at a time: several in one read would be a long turn of the broker's loop. Source: wire contract
6, C12, C13, C34, C48; OASIS AMQP 1.0 part 4.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import DispositionReceived, Event, LinkAttached, LinkDetached, LinkFlow
from peeklock.amqp.performatives import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.serial import ids_in_range
from peeklock.amqp.types import Role
from peeklock.client.errors import (
    CONNECTION_LOST,
    MESSAGE_LOCK_LOST,
    MESSAGE_SIZE_EXCEEDED,
    SERVER_BUSY,
    UNAUTHORIZED,
    ServiceBusError,
    refused,
)
from peeklock.client.links import PROGRESS_S, BusyPauses, Delivery, ReceiveMode, Receiver, SessionChoice

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection

FORWARD_MAX: Final = 100
"""Messages of one transaction. Source: wire contract C34."""

_UNDER_WAY_MAX: Final = 4
"""Transactions under way. Our choice: enough that the broker commits while others travel."""

_UNDER_WAY_BYTES_MAX: Final = 16 << 20
"""Bytes of the transactions under way, unless it is one. Our choice: a quarter of what a broker holds of a
connection's open transactions (wire contract C34)."""

_BEGUN_AGAIN: Final = (SERVER_BUSY, "amqp:transaction:rollback")
"""Refusals after which a transaction is begun again. A commit that is refused does not name the condition;
the next attempt does."""

_Answered = Callable[[DeliveryState | None], None]


@dataclass(slots=True, eq=False)
class _Group:
    """One transaction."""

    moved: Sequence[tuple[Delivery, bytes]]
    index: int
    """Place of its first message among all of the forwarder."""
    size: int
    txn_id: bytes = b""
    unanswered: int = 0
    """Its completions and transfers without an answer."""
    commits: bool = False
    """Its commit was asked for."""
    error: ServiceBusError | None = None
    """Why it is rolled back."""


class _Outlet:
    """A link that we send on, and what waits for its credit."""

    def __init__(self) -> None:
        self.handle = -1
        self.queue: deque[tuple[_Group, bytes, DeliveryState | None, _Answered]] = deque()

    def clear(self) -> None:
        """Forget the link."""
        self.handle = -1
        self.queue.clear()


class Forwarder(Receiver):
    """Receives from one entity, and sends what it received to another one, each group in one transaction.

    A group is moved as a whole or not at all, also where the broker or the connection fails. If the
    connection breaks while a commit is under way, its outcome is unknown: the error says so. Then each group
    is either at the target, or at the source and received again.

    A group that a busy broker refuses is begun again. Any other one that is refused is rolled back. Its
    messages stay locked at the source, and are in `rolled_back`; the caller settles them by `settle`, which
    acts outside of transactions.
    """

    def __init__(
        self, connection: BlockingConnection, source: str, target: str, session: SessionChoice = None
    ) -> None:
        super().__init__(connection, source, ReceiveMode.PEEK_LOCK, session)
        self.target = target
        self.rolled_back: list[Delivery] = []
        """Messages of refused groups, still locked. The caller takes them out."""
        self._coordinator = _Outlet()
        self._out = _Outlet()
        self._out_error: ServiceBusError | None = None
        """Why the link to the target is gone."""
        self._size_max = 0
        self._groups: list[_Group] = []
        """The transactions under way."""
        self._declared: deque[_Group] = deque()
        """Those whose messages wait for those of `_enlisting` to be answered."""
        self._enlisting: _Group | None = None
        self._sent: dict[int, _Answered] = {}
        self._enlisted: dict[int, _Group] = {}
        """By the ids of deliveries whose completion has no answer."""
        self._tags = 0
        self._index = 0
        self._ended = 0
        self._again: list[_Group] = []
        """Those of `_groups` that a busy broker refused; begun again after a pause."""
        self._pauses = BusyPauses(connection.settings.timeout_s)

    def forward(self, moved: Sequence[tuple[Delivery, bytes]]) -> None:
        """Send these payloads to the target and complete their deliveries, as one transaction.

        It does not wait for the outcome, only while too much is under way; `flush` waits. The broker holds
        at most 64 MiB of a connection's transactions.

        Args:
            moved: up to `FORWARD_MAX` deliveries of this forwarder, each with the message to send.

        Raises:
            ValueError: more than `FORWARD_MAX`.
            ServiceBusError: an earlier group was refused, or these cannot be moved. Nothing is under way
                then, and these are still locked unless the connection is lost.
        """
        if len(moved) > FORWARD_MAX:
            raise ValueError(f"{len(moved)} messages in a transaction, at most {FORWARD_MAX} are allowed")
        if not moved:
            return
        with self.connection.lock:
            group = _Group(moved, self._index, sum(len(payload) for _, payload in moved))
            try:
                self._require(moved)
                if self.is_open:
                    self._open_target()
                self._make_room(group.size)
                self._require(moved)
                self._require_sizes(group)
            except ServiceBusError:
                self.flush()  # raises the first error, if there was one before
                raise
            self._index += len(moved)
            self._groups.append(group)
            self._begin(group)
            self._pump()
            with contextlib.suppress(ServiceBusError):  # `lost` has noted it for the next call
                self.connection.exchange(0)

    def flush(self) -> None:
        """Wait for all transactions and settlements.

        Raises:
            ServiceBusError: of the first that was refused, or whose answer was lost with the link.
        """
        with self.connection.lock:
            with contextlib.suppress(ServiceBusError):  # `lost` has noted it
                self._wait(lambda: not self._groups)
            super().flush()

    def close(self) -> None:
        """Close the links in order; transactions under way are rolled back."""
        with self.connection.lock:
            super().close()
            if self._groups:
                self.on_lost(self.connection.error(CONNECTION_LOST, "the links were closed", self.entity))

    # Links

    def authorise(self, deadline: float) -> None:
        super().authorise(deadline)
        self.connection.authorise(self.target, deadline)

    def attach(self) -> None:
        self._coordinator.handle = self._attach_sender(Coordinator())

    def _attach_sender(self, target: Target | Coordinator) -> int:
        name = self.connection.link_name()
        return self.link(
            self.connection.engine.attach(
                self.channel, name, Role.SENDER, Source(name), target, snd_settle_mode=0
            )
        )

    def on_attached(self, event: LinkAttached) -> None:
        """Attach the next link: the receiver after the coordinator, then the sender."""
        if event.handle == self._coordinator.handle:
            super().attach()
        elif event.handle == self._handle:
            super().on_attached(event)
            self._out.handle = self._attach_sender(Target(self.target))
        else:
            self._size_max = event.max_message_size or 0

    def took(self, event: Event) -> None:
        if isinstance(event, LinkDetached) and event.handle == self._out.handle:
            self._target_detached(event)
        else:
            super().took(event)

    def _target_detached(self, event: LinkDetached) -> None:
        """Roll back what needs the target; the locks of the source stay."""
        error = event.error
        lost = self.connection.error(
            None if error is None else str(error.condition),
            "the broker detached the link" if error is None else error.description,
            self.target,
        )
        if not self.is_open:
            self.connection.end(self.channel)
            self.lost(lost)
            return
        if lost.condition == UNAUTHORIZED:
            lost.retryable = self.connection.forget_token(self.target)
        self._attached.pop(self._out.handle, None)
        self._out.clear()
        self._out_error = lost
        for group in [*self._groups]:
            if not group.commits:
                self._roll_back(group, lost)
        self._pump()

    def _open_target(self) -> None:
        """Renew the tokens; attach the sender again if the broker has detached it."""
        deadline = time.monotonic() + PROGRESS_S
        self.authorise(deadline)
        if self._out.handle >= 0:
            return
        self._out_error = None
        handle = self._out.handle = self._attach_sender(Target(self.target))
        self.connection.wait(
            lambda: self._out_error is not None or self._attached.get(handle, False) or not self.is_open,
            deadline,
            self.target,
        )
        if self._out_error is not None:
            raise self._out_error

    def on_event(self, event: Event) -> None:
        if type(event) is LinkFlow:
            if event.drain:
                self.connection.engine.drained(self.channel, event.handle)
            self._pump()
        elif type(event) is not DispositionReceived:
            super().on_event(event)
        elif event.role is Role.RECEIVER:
            for delivery_id in ids_in_range(event.first, event.last, self._sent.keys()):
                self._sent.pop(delivery_id)(event.state)
            self._pump()
        elif not isinstance(event.state, TransactionalState):
            enlisted = ids_in_range(event.first, event.last, self._enlisted.keys())
            for delivery_id in enlisted:
                self._completed(self._enlisted.pop(delivery_id), event.state)
            super().on_event(event)  # of settlements outside of transactions
            self._pump()
        else:
            for delivery_id in ids_in_range(event.first, event.last, self._enlisted.keys()):
                self._answered(self._enlisted.pop(delivery_id))
            self._pump()

    def on_lost(self, error: ServiceBusError) -> None:
        groups, self._groups = self._groups, []
        self._declared.clear()
        self._enlisting = None
        self._coordinator.clear()
        self._out.clear()
        self._sent.clear()
        self._enlisted.clear()
        self._again.clear()
        if groups:
            unknown = sum(len(group.moved) for group in groups if group.commits)
            left = sum(len(group.moved) for group in groups if not group.commits)
            text = (
                f"{error.text} Of the messages on their way to {self.target!r}, {left} are at the source, "
                f"{unknown} are at the target or the source, each transaction as a whole. Receive again to "
                "move what is left."
            )
            self._failures.append(ServiceBusError(error.condition, text, self.entity, error.retryable))
        super().on_lost(error)

    # Waiting

    def _require(self, moved: Sequence[tuple[Delivery, bytes]]) -> None:
        """Raise the first error, or that of messages whose link is lost."""
        if self._failures:
            self.flush()
        if not self.is_open or any(delivery.opening != self._opening for delivery, _ in moved):
            raise self.connection.error(MESSAGE_LOCK_LOST, "the link of the messages is lost", self.entity)

    def _require_sizes(self, group: _Group) -> None:
        for place, (_, payload) in enumerate(group.moved):
            if self._size_max and len(payload) > self._size_max:
                raise self._undone(
                    MESSAGE_SIZE_EXCEEDED,
                    f"a message of {len(payload)} bytes; the limit is {self._size_max}",
                    group.index + place,
                )

    def _make_room(self, size: int) -> None:
        """Wait until one more transaction may be under way."""

        def has_room() -> bool:
            used = sum(group.size for group in self._groups)
            return not used or (len(self._groups) < _UNDER_WAY_MAX and used + size <= _UNDER_WAY_BYTES_MAX)

        self._wait(has_room)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait while transactions end. Raises: ServiceBusError, after `lost`."""
        while self.is_open and not done():
            pause_s = self._pauses.until - time.monotonic()
            if self._again and pause_s > 0:
                self.connection.exchange(pause_s)
                continue
            for group in self._again:
                self._begin(group)
            self._again.clear()
            self._pump()
            self.connection.wait(
                partial(self._moved_on, self._ended), time.monotonic() + PROGRESS_S, self.entity
            )

    def _moved_on(self, before: int) -> bool:
        return self._ended != before or bool(self._again) or not self.is_open

    # Transactions

    def _begin(self, group: _Group) -> None:
        group.txn_id, group.commits, group.error = b"", False, None
        self._ask(group, Declare(), partial(self._on_declared, group))

    def _ask(self, group: _Group, request: Declare | Discharge, answered: _Answered) -> None:
        self._coordinator.queue.append((group, encode_coordination(request), None, answered))

    def _pump(self) -> None:
        """Send as far as the links have credit."""
        if self.is_open:
            engine = self.connection.engine
            for outlet in (self._coordinator, self._out):
                while outlet.queue and engine.credit(self.channel, outlet.handle) > 0:
                    _, payload, state, answered = outlet.queue.popleft()
                    self._tags = (self._tags + 1) & 0xFFFFFFFF
                    tag = self._tags.to_bytes(4, "big")
                    delivery_id = engine.send(self.channel, outlet.handle, tag, payload, state=state)
                    self._sent[delivery_id] = answered

    def _on_declared(self, group: _Group, state: DeliveryState | None) -> None:
        if not isinstance(state, Declared):
            self._end(group, self._refusal(state, group.index, self.entity))
            return
        group.txn_id = state.txn_id
        if group.error is not None:
            self._discharge(group)
            return
        self._declared.append(group)
        self._enlist_next()

    def _enlist_next(self) -> None:
        """Send the messages of the next transaction, unless those of another one have no answers yet."""
        if self._enlisting is not None or not self._declared:
            return
        group = self._enlisting = self._declared.popleft()
        group.unanswered = 2 * len(group.moved)
        completed = TransactionalState(group.txn_id, ACCEPTED)
        engine = self.connection.engine
        for delivery, _ in group.moved:
            number = delivery.delivery_id
            self._enlisted[number] = group
            engine.disposition(self.channel, Role.RECEIVER, number, number, completed, settled=False)
        sent = TransactionalState(group.txn_id)
        for place, (_, payload) in enumerate(group.moved):
            answered = partial(self._transferred, group, group.index + place)
            self._out.queue.append((group, payload, sent, answered))

    def _transferred(self, group: _Group, index: int, state: DeliveryState | None) -> None:
        if isinstance(state, TransactionalState) and state.outcome in (ACCEPTED, None):
            self._answered(group)
        else:
            self._roll_back(group, self._refusal(state, index, self.target))

    def _completed(self, group: _Group, state: DeliveryState | None) -> None:
        """Handle a completion that did not become part of its transaction."""
        self._roll_back(group, self._refusal(state, group.index, self.entity))

    def _answered(self, group: _Group) -> None:
        group.unanswered -= 1
        if not group.unanswered and group.error is None:
            group.commits = True
            self._discharge(group)
            self._enlisted_all(group)

    def _enlisted_all(self, group: _Group) -> None:
        """Go on with the next transaction after this one, or without it."""
        if self._enlisting is group:
            self._enlisting = None
        elif group in self._declared:
            self._declared.remove(group)
        self._enlist_next()

    def _roll_back(self, group: _Group, error: ServiceBusError) -> None:
        if group.error is None:
            group.error = error
            self._out.queue = deque(item for item in self._out.queue if item[0] is not group)
            if group.txn_id:
                self._discharge(group)
                self._enlisted_all(group)

    def _discharge(self, group: _Group) -> None:
        request = Discharge(group.txn_id, fail=not group.commits)
        self._ask(group, request, partial(self._discharged, group))

    def _discharged(self, group: _Group, state: DeliveryState | None) -> None:
        if group.error is None and state != ACCEPTED:
            group.error = self._refusal(state, group.index, self.entity)
        if group.error is None:
            settled = TransactionalState(group.txn_id, ACCEPTED)
            for delivery, _ in group.moved:
                number = delivery.delivery_id
                self.connection.engine.disposition(
                    self.channel, Role.RECEIVER, number, number, settled, settled=True
                )
        self._end(group, group.error)

    def _end(self, group: _Group, error: ServiceBusError | None) -> None:
        for delivery, _ in group.moved:
            self._enlisted.pop(delivery.delivery_id, None)
        if error is not None and error.condition in _BEGUN_AGAIN and self._pauses.begin():
            self._again.append(group)
            return
        self._groups.remove(group)
        self._ended += 1
        if error is None:
            self._pauses.end()
        else:
            self.rolled_back += [delivery for delivery, _ in group.moved]
            self._failures.append(error)

    def _refusal(self, state: DeliveryState | None, index: int, entity: str) -> ServiceBusError:
        if isinstance(state, Rejected) and state.error is not None:
            return self._undone(str(state.error.condition), state.error.description, index, entity)
        return self._undone("amqp:internal-error", f"the outcome was {state}, not accepted", index, entity)

    def _undone(self, condition: str, text: str, index: int, entity: str | None = None) -> ServiceBusError:
        text = f"{text.strip().rstrip('.')}. Nothing of its transaction was done"
        return refused(condition, text, host=self.connection.host, entity=entity or self.target, index=index)
