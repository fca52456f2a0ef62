"""Sends and completions with further messages: as many commands, one behind the other, would have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.commands import (
    Address,
    Complete,
    LockToken,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    ReplyTo,
    Send,
    SetCredit,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Effect,
    Rejected,
    SenderOpened,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import MessageLockLost, MessageSizeExceeded
from peeklock.broker.vocabulary.message import Message, Routing
from peeklock.broker.vocabulary.quotas import STANDARD
from tests.broker.harness import LOTS, MINUTE_MS, Broker, deliveries

FITS, TOO_LARGE = 10, STANDARD.message_size_kb_max * 1024 + 1
QUEUES: list[dict[str, Any]] = [
    {},
    {"requires_duplicate_detection": True, "duplicate_window_ms": MINUTE_MS},
    {"requires_session": True},
]


def sends(sizes: list[int], *, together: bool) -> list[Send]:
    """Return the sends of messages that come in one read: as one command, or each by itself."""
    members = [
        (
            Message(size, routing=Routing(message_id=b"id-%d" % (number // 2), session_id=f"s{number % 2}")),
            Sections(bytes(min(size, FITS))),
        )
        for number, size in enumerate(sizes)
    ]
    if together:
        (message, sections), *further = members
        return [Send(4, message, sections, ReplyTo(1, 7, 100), None, further)]
    return [
        Send(4, message, sections, ReplyTo(1, 7, 100 + number))
        for number, (message, sections) in enumerate(members)
    ]


def answered(effects: list[Effect]) -> list[tuple[int, type]]:
    """Return what each number was told."""
    told: list[tuple[int, type]] = []
    for effect in effects:
        if isinstance(effect, Accepted | Settled):
            first = effect.reply_to.number
            told += [(number, type(effect)) for number in range(first, first + effect.count)]
        elif isinstance(effect, Rejected | SettlementFailed):
            told.append((effect.reply_to.number, type(effect.error)))
    return told


def stored(broker: Broker) -> list[tuple[int, int]]:
    return [(message.sequence_number, message.size_bytes) for message in broker.namespace._queues[4].active]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([FITS, FITS, FITS, TOO_LARGE]), min_size=1, max_size=9), st.sampled_from(QUEUES)
)
def test_sends_together_are_as_sends_one_by_one(sizes: list[int], options: dict[str, Any]) -> None:
    """Req: T-01, T-02"""
    found = []
    for together in (True, False):
        broker = Broker()
        broker.create(**options)
        effects = [effect for command in sends(sizes, together=together) for effect in broker.do(command)]
        requests = broker.namespace.requests()["send"]
        found.append((answered(effects), stored(broker), requests, broker.namespace.counters))
    assert found[0] == found[1]
    assert [told for _, told in found[0][0]] == [
        Accepted if size == FITS else MessageSizeExceeded for size in sizes
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_completions_together_are_as_completions_one_by_one(lost: list[bool]) -> None:
    """Req: L-05, L-11"""
    found = []
    for together in (True, False):
        broker = Broker()
        broker.create()
        broker.do(sends([FITS] * len(lost), together=True)[0])
        link = broker.link()
        broker.do(OpenReceiver(link, Address("orders"), ReceiveMode.PEEK_LOCK))
        given_out = deliveries(broker.do(SetCredit(link, len(lost), LOTS)))
        tokens = [
            LockToken(bytes(16)) if is_lost else delivery.lock_token
            for delivery, is_lost in zip(given_out, lost, strict=True)
        ]
        first, *further = [token for token in tokens if token is not None]
        commands = [Complete(4, first, ReplyTo(1, 7, 100), further)]
        if not together:
            commands = [
                Complete(4, token, ReplyTo(1, 7, 100 + number))
                for number, token in enumerate([first, *further])
            ]
        effects = [effect for command in commands for effect in broker.do(command)]
        requests = broker.namespace.requests()["complete"]
        found.append((answered(effects), stored(broker), requests, broker.namespace.counters))
    assert found[0] == found[1]
    assert [told for _, told in found[0][0]] == [MessageLockLost if is_lost else Settled for is_lost in lost]


@pytest.mark.parametrize(
    ("options", "takes_runs"),
    [({}, True), ({"forward_to": "other"}, False), ({"requires_session": True}, True)],
)
def test_only_a_queue_that_keeps_its_messages_takes_them_together(
    options: dict[str, Any], takes_runs: bool
) -> None:
    """Of others each may become thousands of copies. Req: R-06"""
    broker = Broker()
    broker.create("other")
    broker.create(**options)
    broker.create_topic()
    opened = broker.one(OpenSender(broker.link(), Address("orders")), SenderOpened)
    assert opened.takes_runs is takes_runs
    assert not broker.one(OpenSender(broker.link(), Address("news")), SenderOpened).takes_runs
