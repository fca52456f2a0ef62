"""A broker that is too busy to take messages: they wait, and keep their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Int, Long
from peeklock.client.connection import BlockingConnection
from peeklock.server.shard import back_pressure

pytestmark = pytest.mark.spark


def test_messages_of_a_session_keep_their_order_over_server_busy(
    own: BlockingConnection, make_queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused is sent again in the order in which it was given."""
    queue = make_queue(requires_session=True)
    sender = own.sender(queue)
    number = 0
    with monkeypatch.context() as patch:
        # From the next measurement of the lag on, some 250 ms apart, sends are refused.
        patch.setattr(back_pressure, "LAG_MS_MAX", -1)
        while not sender._pauses.until:
            for _ in range(30):  # some under way at a time
                sender.send(_message(number))
                number += 1
            own.exchange(0.01)
    sender.flush()
    assert _bodies(own, queue) == list(range(number))


def _message(number: int) -> bytes:
    return encode_message(properties=Properties(group_id="s"), data=b"%d" % number)


def _bodies(connection: BlockingConnection, queue: str) -> list[int]:
    found: list[int] = []
    start = 0
    while True:
        body: dict[str, Any] = {"from-sequence-number": Long(start), "message-count": Int(1000)}
        answer = connection.management(queue).request("com.microsoft:peek-message", body).body
        if not answer.get("messages"):
            return found
        for one in answer["messages"]:
            sections = scan(one["message"])
            ((_, data),) = sections.decode_body()
            found.append(int(data))
            start = sections.decode_message_annotations()["x-opt-sequence-number"] + 1
