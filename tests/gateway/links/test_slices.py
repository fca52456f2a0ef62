"""What is read in several turns: batches and schedules, in order with all that comes behind them."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.types import Role
from peeklock.broker.vocabulary.commands import (
    CloseLink,
    Command,
    OpenSender,
    Send,
    SendBatch,
)
from peeklock.broker.vocabulary.effects import Accepted, DetachLink, Rejected, SenderOpened
from peeklock.broker.vocabulary.errors import EntityDeleted
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.inspection import BATCH_MESSAGES_MAX
from tests.amqp.pair import transfer
from tests.gateway.harness import QUEUE_ID, SIZE_MAX, Harness, message_bytes, section

SLICE = 10


def batch_of(first: int, count: int) -> bytes:
    return b"".join(section(0x75, message_bytes(b"%d" % n)) for n in range(first, first + count))


class SlowHarness(Harness):
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


def slow_desk() -> SlowHarness:
    return SlowHarness(limits=GatewayLimits(slice_messages=SLICE))


def bodies(command: Command) -> list[int]:
    """Return the numbers in the messages of a command."""
    if isinstance(command, Send):
        return [int(command.sections.payload[5:])]
    assert isinstance(command, SendBatch)
    return [int(sections.payload[5:]) for _, sections in command.messages]


def test_a_small_batch_is_read_at_once() -> None:
    rig = slow_desk()
    rig.send_batch(rig.sender(), 0, SLICE - 1)
    (command,) = rig.carry()
    assert bodies(command) == list(range(SLICE - 1))
    assert not rig.gateway.unread


def test_a_large_batch_is_read_a_slice_a_turn_and_offered_whole() -> None:
    """Req: T-07, R-05"""
    rig = slow_desk()
    rig.send_batch(rig.sender(), 0, 5 * SLICE + 1)
    assert rig.carry() == []
    for _ in range(4):
        assert rig.turn() == []
    (command,) = rig.turn()
    assert bodies(command) == list(range(5 * SLICE + 1))
    assert rig.rest() == []
    assert rig.turns == 5


def test_what_comes_behind_a_batch_waits_for_it() -> None:
    """In the same read and in later ones. Req: T-07"""
    rig = slow_desk()
    handle = rig.sender()
    other = rig.attach(Role.SENDER, "others")
    opened = rig.take(OpenSender)
    rig.effect(SenderOpened(opened.link, QUEUE_ID + 4, SIZE_MAX, reads_routing=False))
    rig.send_batch(handle, 0, 25)
    rig.send(handle, message_bytes(b"25"))
    rig.send_batch(handle, 26, 25)
    rig.send(other, message_bytes(b"51"))
    assert rig.carry() == []
    rig.send(handle, message_bytes(b"52"))
    rig.client.detach(rig.channel, handle)
    assert rig.carry() == []
    *sent, closed = rig.rest()
    assert [n for command in sent for n in bodies(command)] == list(range(53))
    assert [type(command) for command in sent] == [SendBatch, Send, SendBatch, Send, Send]
    assert isinstance(closed, CloseLink)
    assert rig.turns < 12


def test_early_transfers_are_read_in_slices_and_in_order() -> None:
    """Req: T-11: the Python client does not wait for the answer to its attach."""
    rig = slow_desk()
    handle = rig.attach(Role.SENDER, "orders")
    opened = rig.take(OpenSender)
    # The client half would hold them back: write the frames as Python does.
    frames = [
        transfer(handle, 0, batch_of(0, 25), message_format=BATCH_FORMAT),
        transfer(handle, 1, message_bytes(b"25")),
        transfer(handle, 2, batch_of(26, 25), message_format=BATCH_FORMAT),
    ]
    assert rig.gateway.receive(b"".join(frames), rig.clock.now_ms) == []
    assert rig.gateway.uncommitted_bytes > 0
    rig.gateway.handle(
        [SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, reads_routing=False)], lambda _: None, 0
    )
    late = transfer(handle, 3, message_bytes(b"51"))
    found = rig.gateway.take_commands() + rig.gateway.receive(late, rig.clock.now_ms, 1) + rig.rest()
    assert [n for command in found for n in bodies(command)] == list(range(52))
    assert rig.turns >= 5
    for command in found:
        assert isinstance(command, Send | SendBatch)
        assert command.reply_to is not None
        rig.effect(Accepted(command.reply_to))
    assert rig.gateway.uncommitted_bytes == 0


def test_a_link_that_is_detached_meanwhile_holds_no_bytes() -> None:
    """Its entity was deleted; the broker will say so of the batch too. Req: T-08"""
    rig = slow_desk()
    handle = rig.attach(Role.SENDER, "orders")
    opened = rig.take(OpenSender)
    rig.effect(SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, reads_routing=False))
    rig.send_batch(handle, 0, 25)
    rig.carry()
    rig.gateway.handle([DetachLink(opened.link, EntityDeleted("gone"))], lambda _: None, 0)
    (sent,) = rig.rest()
    assert isinstance(sent, SendBatch)
    assert rig.gateway.uncommitted_bytes == 0
    assert sent.reply_to is not None
    rig.effect(Rejected(sent.reply_to, EntityDeleted("gone")))
    assert rig.gateway.uncommitted_bytes == 0


def test_a_batch_of_too_many_messages_is_refused_and_its_link_lives_on() -> None:
    """Req: T-07, R-05"""
    rig = Harness()
    handle = rig.sender()
    members = section(0x75, b"") * (BATCH_MESSAGES_MAX + 1)
    error = rig.rejection(rig.transfer(handle, members, message_format=BATCH_FORMAT))
    assert error.condition == "amqp:link:message-size-exceeded"
    assert "more than 4500 messages" in error.description
    rig.transfer(handle, members[: 5 * BATCH_MESSAGES_MAX], message_format=BATCH_FORMAT)
    assert len(rig.take(SendBatch).messages) == BATCH_MESSAGES_MAX
