"""What rules see of an encoded message."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.messaging import encode_message
from peeklock.broker.message import Message
from peeklock.broker.subject import MessageSubject


def seen(properties: dict[str, Any]) -> MessageSubject:
    payload = encode_message(application_properties=properties, data=b"body")
    return MessageSubject(Message(len(payload)), payload, lambda: bytes(16))


@pytest.mark.parametrize(
    ("properties", "value"),
    [({"Color": "blue", "color": "red"}, "blue"), ({"Color": None, "color": "red"}, None)],
)
def test_of_two_spellings_sql_sees_the_first_also_where_it_is_null(
    properties: dict[str, Any], value: str | None
) -> None:
    """Req: P-02. What an action changes has to be what its filter has read."""
    subject = seen(properties)
    assert subject.folded.get("color") == value
    assert subject.user_name("color") == "Color"
    assert subject.has_user("color")
    assert subject.user["color"] == "red"
