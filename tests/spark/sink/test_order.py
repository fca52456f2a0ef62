"""The rows of a session keep their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.encoding import encode
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Int, Long
from peeklock.client.connection import BlockingConnection
from peeklock.spark.sink.outgoing import EncodedRows
from peeklock.spark.sink.writer import RowSender

pytestmark = pytest.mark.spark


def test_rows_of_a_session_keep_their_order_however_it_is_spelt(
    own: BlockingConnection, make_queue: Callable[..., str]
) -> None:
    """Req: C27. A transfer has one spelling alone: the service refuses different keys in one."""
    queue = make_queue(requires_session=True)
    spellings = ["straße", "STRAßE", "straße", "Straße", "Straße", "other", "STRAßE"]
    payloads = [
        encode_message(properties=Properties(group_id=spelling), data=b"%d" % number)
        for number, spelling in enumerate(spellings)
    ]
    count = len(spellings)
    sender = RowSender(own, queue, 0)
    sender.send(EncodedRows([*range(count)], payloads, [None] * count, [encode(each) for each in spellings]))
    assert sender.finish().counts == {queue: count}
    body: dict[str, Any] = {"from-sequence-number": Long(0), "message-count": Int(100)}
    answer = own.management(queue).request("com.microsoft:peek-message", {**body, "session-id": "STRAßE"})
    found = [scan(one["message"]) for one in answer.body["messages"]]
    assert [each.decode_properties().group_id for each in found] == [
        spelling for spelling in spellings if spelling != "other"
    ]
    assert [int(each.decode_body()[0][1]) for each in found] == [0, 1, 2, 3, 4, 6]
