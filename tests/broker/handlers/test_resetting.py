"""Reset of a namespace: messages go; entities, links and numbers stay."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.commands import Abandon
from peeklock.broker.vocabulary.effects import Done, SettlementFailed
from peeklock.broker.vocabulary.errors import MessageLockLost
from peeklock.broker.vocabulary.extension_commands import Reset
from tests.broker.harness import Broker, numbers, token


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def reset(broker: Broker) -> None:
    command = Reset(broker.reply_to())
    assert Done(command.reply_to) in broker.do(command)


def test_messages_of_every_state_go_and_numbers_go_on(broker: Broker) -> None:
    broker.send()
    broker.send()
    broker.schedule(1_000)
    broker.defer(broker.receive()[0])
    broker.dead_letter(broker.receive()[0])
    reset(broker)
    assert broker.peek() == broker.peek_dead() == []
    assert broker.view().size_bytes == 0
    broker.advance(2_000)
    assert broker.view().active_count == 0
    broker.send()
    assert numbers(broker.peek()) == [4]


def test_a_held_lock_is_lost_and_its_link_goes_on(broker: Broker) -> None:
    link = broker.receiver()
    broker.send()
    [held] = broker.credit(link)
    reset(broker)
    [refused] = broker.do(Abandon(4, token(held), broker.reply_to()))
    assert isinstance(refused, SettlementFailed)
    assert isinstance(refused.error, MessageLockLost)
    broker.send()
    assert numbers(broker.peek()) == [2]
    assert broker.receive() == []  # the link has it


def test_a_restart_finds_what_the_reset_left(broker: Broker) -> None:
    broker.send()
    reset(broker)
    broker.send()
    broker.restart()
    assert numbers(broker.peek()) == [2]
