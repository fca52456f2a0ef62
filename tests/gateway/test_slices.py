"""What is read in several turns: batches and schedules, in order with all that comes behind them."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.types import Role
from peeklock.broker.commands import (
    CloseLink,
    Command,
    OpenSender,
    Send,
    SendBatch,
)
from peeklock.broker.effects import Accepted, DetachLink, Rejected, SenderOpened
from peeklock.broker.errors import EntityDeleted
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.inspection import BATCH_MESSAGES_MAX
from tests.amqp.pair import transfer
from tests.gateway.playbook import QUEUE_ID, SIZE_MAX, Desk, message_bytes, section

SLICE = 10


def batch_of(first: int, count: int) -> bytes:
    return b"".join(section(0x75, message_bytes(b"%d" % n)) for n in range(first, first + count))


class SlowDesk(Desk):
    """A desk that gives the gateway one turn at a time."""

    turns = 0

    def send(self, handle: int, payload: bytes, **options: Any) -> int:
        """Send a delivery; nothing is carried over yet."""
        return self.client.send(self.channel, handle, b"tag", payload, **options)

    def send_batch(self, handle: int, first: int, count: int, **options: Any) -> int:
        return self.send(handle, batch_of(first, count), message_format=BATCH_FORMAT, **options)

    def carry(self) -> list[Command]:
        """Carry over what the client has written, in one read."""
        return self.gateway.receive(self.client.data_to_send(), self.clock.now_ms, 1)

    def turn(self) -> list[Command]:
        """Let the gateway have a turn."""
        assert self.gateway.unread
        self.turns += 1
        return self.gateway.receive(b"", self.clock.now_ms, 1)

    def rest(self) -> list[Command]:
        """Let the gateway have all the turns it wants."""
        found = []
        while self.gateway.unread:
            found += self.turn()
        return found


def slow_desk() -> SlowDesk:
    return SlowDesk(limits=GatewayLimits(slice_messages=SLICE))


def bodies(command: Command) -> list[int]:
    """Give the numbers in the messages of a command."""
    if isinstance(command, Send):
        return [int(command.sections.payload[5:])]
    assert isinstance(command, SendBatch)
    return [int(sections.payload[5:]) for _, sections in command.messages]


def test_a_small_batch_is_read_at_once() -> None:
    desk = slow_desk()
    desk.send_batch(desk.sender(), 0, SLICE - 1)
    (command,) = desk.carry()
    assert bodies(command) == list(range(SLICE - 1))
    assert not desk.gateway.unread


def test_a_large_batch_is_read_a_slice_a_turn_and_offered_whole() -> None:
    """Req: T-07, R-05"""
    desk = slow_desk()
    desk.send_batch(desk.sender(), 0, 5 * SLICE + 1)
    assert desk.carry() == []
    for _ in range(4):
        assert desk.turn() == []
    (command,) = desk.turn()
    assert bodies(command) == list(range(5 * SLICE + 1))
    assert desk.rest() == []
    assert desk.turns == 5


def test_what_comes_behind_a_batch_waits_for_it() -> None:
    """In the same read and in later ones. Req: T-07"""
    desk = slow_desk()
    handle = desk.sender()
    other = desk.attach(Role.SENDER, "others")
    opened = desk.take(OpenSender)
    desk.effect(SenderOpened(opened.link, QUEUE_ID + 4, SIZE_MAX, reads_routing=False))
    desk.send_batch(handle, 0, 25)
    desk.send(handle, message_bytes(b"25"))
    desk.send_batch(handle, 26, 25)
    desk.send(other, message_bytes(b"51"))
    assert desk.carry() == []
    desk.send(handle, message_bytes(b"52"))
    desk.client.detach(desk.channel, handle)
    assert desk.carry() == []
    *sent, closed = desk.rest()
    assert [n for command in sent for n in bodies(command)] == list(range(53))
    assert [type(command) for command in sent] == [SendBatch, Send, SendBatch, Send, Send]
    assert isinstance(closed, CloseLink)
    assert desk.turns < 12


def test_early_transfers_are_read_in_slices_and_in_order() -> None:
    """Req: T-11: the Python client does not wait for the answer to its attach."""
    desk = slow_desk()
    handle = desk.attach(Role.SENDER, "orders")
    opened = desk.take(OpenSender)
    # The client half would hold them back: write the frames as Python does.
    frames = [
        transfer(handle, 0, batch_of(0, 25), message_format=BATCH_FORMAT),
        transfer(handle, 1, message_bytes(b"25")),
        transfer(handle, 2, batch_of(26, 25), message_format=BATCH_FORMAT),
    ]
    assert desk.gateway.receive(b"".join(frames), desk.clock.now_ms) == []
    assert desk.gateway.uncommitted_bytes > 0
    desk.gateway.handle(
        [SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, reads_routing=False)], lambda _: None, 0
    )
    late = transfer(handle, 3, message_bytes(b"51"))
    found = desk.gateway.take_commands() + desk.gateway.receive(late, desk.clock.now_ms, 1) + desk.rest()
    assert [n for command in found for n in bodies(command)] == list(range(52))
    assert desk.turns >= 5
    for command in found:
        assert isinstance(command, Send | SendBatch)
        assert command.reply_to is not None
        desk.effect(Accepted(command.reply_to))
    assert desk.gateway.uncommitted_bytes == 0


def test_a_link_that_is_detached_meanwhile_holds_no_bytes() -> None:
    """Its entity was deleted; the broker will say so of the batch too. Req: T-08"""
    desk = slow_desk()
    handle = desk.attach(Role.SENDER, "orders")
    opened = desk.take(OpenSender)
    desk.effect(SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, reads_routing=False))
    desk.send_batch(handle, 0, 25)
    desk.carry()
    desk.gateway.handle([DetachLink(opened.link, EntityDeleted("gone"))], lambda _: None, 0)
    (sent,) = desk.rest()
    assert isinstance(sent, SendBatch)
    assert desk.gateway.uncommitted_bytes == 0
    assert sent.reply_to is not None
    desk.effect(Rejected(sent.reply_to, EntityDeleted("gone")))
    assert desk.gateway.uncommitted_bytes == 0


def test_a_batch_of_too_many_messages_is_refused_and_its_link_lives_on() -> None:
    """Req: T-07, R-05"""
    desk = Desk()
    handle = desk.sender()
    members = section(0x75, b"") * (BATCH_MESSAGES_MAX + 1)
    error = desk.rejection(desk.transfer(handle, members, message_format=BATCH_FORMAT))
    assert error.condition == "amqp:link:message-size-exceeded"
    assert "more than 4500 messages" in error.description
    desk.transfer(handle, members[: 5 * BATCH_MESSAGES_MAX], message_format=BATCH_FORMAT)
    assert len(desk.take(SendBatch).messages) == BATCH_MESSAGES_MAX
