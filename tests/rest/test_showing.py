"""Whatever a message holds, its answer can be written, and says what was sent."""

from __future__ import annotations

from typing import Any

import h11
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.types import Char, Long, Symbol, Timestamp
from peeklock.broker.vocabulary.commands import Address, SendTo
from peeklock.gateway.inspection import take_in
from peeklock.rest.properties import is_property, read_headers, write_headers
from tests.rest.asking import HttpBroker

TEXTS = st.text(max_size=20)
STRANGE = ["Content-Length", "Location", "a", "A", "X-b", "Set-Cookie", "brokerproperties"]
NAMES = TEXTS | st.sampled_from(STRANGE)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    LONGS.map(Long),
    LONGS.map(Timestamp),
    st.floats(),
    TEXTS,
    st.binary(max_size=20),
    st.uuids(),
    st.characters(codec="utf-8").map(Char),
    st.just(Symbol("s")),
)


def written(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Write an answer as the server does, and read it as a client."""
    server, client = h11.Connection(h11.SERVER), h11.Connection(h11.CLIENT)
    data = client.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    assert data is not None
    server.receive_data(data)
    server.next_event()
    data = server.send(h11.Response(status_code=201, headers=[*headers, ("Content-Length", "0")]))
    assert data is not None
    client.receive_data(data)
    assert isinstance(client.next_event(), h11.Response)
    return data


@given(st.dictionaries(NAMES, VALUES, max_size=5), TEXTS, TEXTS | st.binary(max_size=5) | st.none())
def test_every_message_can_be_answered(properties: dict[str, Any], text: str, message_id: Any) -> None:
    """Req: T-09."""
    broker = HttpBroker()
    broker.create_queue("q")
    fields = Properties(message_id=message_id, subject=text, correlation_id=text, reply_to=text)
    payload = encode_message(properties=fields, application_properties=properties, data=b"x")
    broker.ask(lambda reply_to: SendTo(Address("q"), [take_in(payload, True)], reply_to))
    found = broker.answer("POST", "/q/messages/head?timeout=0")
    head = written(tuple(found.headers.items()))
    assert head.count(b"\r\n") == len(found.headers) + 3
    assert found.broker["Label"] == text


@given(st.dictionaries(st.sampled_from(["a", "b-c", "D"]), st.booleans() | LONGS | TEXTS, max_size=3))
def test_what_is_shown_can_be_sent_again(properties: dict[str, Any]) -> None:
    """Req: T-09."""
    assert all(is_property(name) for name in properties)
    assert read_headers(write_headers(properties)) == properties


def test_a_host_that_is_no_text_breaks_no_answer() -> None:
    broker = HttpBroker()
    broker.create_queue("q")
    broker.answer("POST", "/q/messages", b"x")
    found = broker.answer("POST", "/q/messages/head", b"", {"Host": 'h\xff"<>'})
    written(tuple(found.headers.items()))
