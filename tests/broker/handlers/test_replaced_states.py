"""The state of a session that nobody holds is set by request."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.commands import Address, SetSessionState, ShowSession
from peeklock.broker.vocabulary.effects import Done, SessionShown
from peeklock.broker.vocabulary.errors import (
    InvalidOperation,
    MessageSizeExceeded,
    SessionCannotBeLocked,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import ReplaceSessionState
from tests.broker.harness import MINUTE_MS, Broker

WHERE = Address("orders")


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create(requires_session=True)
    made.send(session_id="a")
    return made


def replace(broker: Broker, state: bytes | None, session_id: str = "a") -> ReplaceSessionState:
    return ReplaceSessionState(WHERE, session_id, state, broker.reply_to())


def shown(broker: Broker, session_id: str = "a") -> SessionShown:
    return broker.one(ShowSession(WHERE, session_id, broker.reply_to()), SessionShown)


@pytest.mark.parametrize("session_id", ["a", "new", "A"])
def test_a_state_is_set_replaced_and_cleared(broker: Broker, session_id: str) -> None:
    """Req: G-03."""
    for state in (b"one", b"", b"three"):
        broker.one(replace(broker, state, session_id), Done)
        found = shown(broker, session_id).state
        assert found is not None
        assert found.message.size_bytes >= len(state)
    broker.restart()
    assert shown(broker, session_id).state is not None
    broker.one(replace(broker, None, session_id), Done)
    assert shown(broker, session_id).state is None
    broker.one(replace(broker, None, session_id), Done)
    broker.restart()
    assert shown(broker, session_id).state is None


def test_a_session_that_a_receiver_holds_is_left_to_it(broker: Broker) -> None:
    link = broker.accept("a").link
    assert isinstance(broker.refused(replace(broker, b"x")), SessionCannotBeLocked)
    found = shown(broker)
    assert found.connection_id == link.connection_id
    broker.one(SetSessionState(WHERE, "a", b"mine", broker.reply_to()), Done)
    broker.advance(2 * MINUTE_MS)
    assert shown(broker).connection_id == 0
    broker.one(replace(broker, b"x"), Done)


def test_each_change_has_its_event(broker: Broker) -> None:
    broker.events.clear()
    broker.do(replace(broker, b"one"))
    (event,) = broker.events
    assert (event.type, event.session_id, event.size_bytes) == (EventType.SESSION_STATE_SET, "a", 3)
    assert (event.reason, event.link_name) == ("by request", None)
    broker.do(replace(broker, b"one", "new"))
    assert broker.events[-1].session_id == "new"


def test_what_cannot_be_set_is_refused(broker: Broker) -> None:
    assert isinstance(broker.refused(replace(broker, bytes(300_000))), MessageSizeExceeded)
    broker.create("plain")
    command = ReplaceSessionState(Address("plain"), "a", b"x", broker.reply_to())
    assert isinstance(broker.refused(command), InvalidOperation)
