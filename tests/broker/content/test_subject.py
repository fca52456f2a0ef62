"""What rules see of an encoded message."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import scan
from peeklock.broker.content.subject import MessageSubject
from peeklock.broker.vocabulary.message import Message
from peeklock.rules.compiled import compile_filter
from peeklock.rules.filters import CorrelationFilter


@pytest.mark.parametrize(("sent", "text"), [("key", "key"), (b"k\xc3\xa9y", "kéy"), (b"\xff", None)])
def test_a_partition_key_is_text_however_it_was_sent(sent: object, text: str | None) -> None:
    """Req: P-02. Source: wire contract C6. What was stored before may be no UTF-8."""
    names = {"x-opt-partition-key": sent, "x-opt-via-partition-key": sent}
    payload = encode_message(message_annotations=names, data=b"body")
    system = MessageSubject(Message(len(payload)), scan(payload), lambda: bytes(16)).system
    assert system.get("partitionkey") == system.get("viapartitionkey") == text


@pytest.mark.parametrize(
    ("source", "said"), [("Orders", "orders"), ("News/Subscriptions/All",) * 2, (None, None)]
)
def test_the_source_of_a_dead_letter_is_a_queue_in_lower_case(source: str | None, said: str | None) -> None:
    """Req: C37. As its receivers see it."""
    message = Message(1)
    message.dead_letter_source = source
    assert (
        MessageSubject(message, scan(encode_message(data=b"body")), lambda: bytes(16)).system.get(
            "deadlettersource"
        )
        == said
    )


def seen(properties: dict[str, Any]) -> MessageSubject:
    payload = encode_message(application_properties=properties, data=b"body")
    return MessageSubject(Message(len(payload)), scan(payload), lambda: bytes(16))


@pytest.mark.parametrize(
    ("properties", "value"),
    [({"Color": "blue", "color": "red"}, "blue"), ({"Color": None, "color": "red"}, None)],
)
def test_of_two_spellings_rules_see_the_first_also_where_it_is_null(
    properties: dict[str, Any], value: str | None
) -> None:
    """Req: P-02, C36. What an action changes has to be what its filter has read."""
    subject = seen(properties)
    assert subject.user.get("color") == value
    assert subject.user_name("color") == "Color"
    assert subject.has_user("color")
    wanted = compile_filter(CorrelationFilter(properties=(("COLOR", "blue"),)))
    assert wanted.matches(subject) is (value == "blue")
    other = compile_filter(CorrelationFilter(properties=(("color", "red"),)))
    assert not other.matches(subject)
