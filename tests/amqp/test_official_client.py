"""Our frames as the official Python client reads them, and its frames as we do.

Its codec reads by position and ignores lengths, so that its reading of our bytes needs a separate test.
Source: azure-servicebus 7.15, `_pyamqp`; wire contract 0.2.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode as client_decode
from azure.servicebus._pyamqp import _encode as client_encode
from azure.servicebus._pyamqp import endpoints, outcomes, performatives
from azure.servicebus._pyamqp.message import Header as ClientHeader
from azure.servicebus._pyamqp.message import Message as ClientMessage
from azure.servicebus._pyamqp.message import Properties as ClientProperties

from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import (
    ConnectionOpened,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SaslInit,
    SessionBegun,
    SessionEnded,
)
from peeklock.amqp.frames import AMQP_HEADER, SASL_HEADER
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, Modified, Rejected, Source, Target
from peeklock.amqp.types import Long, Role, Symbol
from tests.amqp.pair import attach, bare_server, begin, every, flow, only, opened_pair


def client_frames(data: bytes) -> list[tuple[int, list[Any]]]:
    """Read a stream as the client does: (performative, fields with their payload)."""
    found = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(client_decode.decode_frame(memoryview(data)[position + 8 : position + size]))
        position += size
    return found


def filled(kind: Any, **values: Any) -> Any:
    """Make a frame of the client's; fields that are not named are null."""
    return kind(**{name: values.get(name) for name in kind._fields})


def client_bytes(frame: Any, *, channel: int = 0, sasl: bool = False) -> bytes:
    """Write a frame as the client does."""
    header, body = client_encode.encode_frame(frame, b"\x01" if sasl else b"\x00")
    return header + channel.to_bytes(2, "big") + bytes(body or b"")


def test_the_client_reads_open_begin_attach_and_flow() -> None:
    server = Connection("server", container_id="server", now_ms=0)
    server.receive(
        AMQP_HEADER + client_bytes(filled(performatives.OpenFrame, container_id="c", hostname="h")), 0
    )
    server.open()
    server.receive(begin(1) + attach(1, Role.RECEIVER, channel=1), 0)
    server.accept_link(
        1, 1, max_message_size=262144, properties={Symbol("com.microsoft:locked-until-utc"): Long(5)}
    )
    server.receive(flow(1, credit=5, channel=1), 0)
    server.drained(1, 1)
    opened, begun, attached, flowed = client_frames(server.data_to_send()[8:])
    assert opened[0] == 0x10
    assert opened[1][:5] == [b"server", None, 65536, 4999, 240_000]
    assert begun[1][:5] == [1, 0, 5000, 5000, 1023]
    name, handle, role, _, _, source, target = attached[1][:7]
    assert (name, handle, role) == (b"link", 1, False)
    assert source[0] == target[0] == b"queue"
    assert attached[1][9:11] == [0, 262144]
    assert attached[1][13] == {b"com.microsoft:locked-until-utc": 5}
    assert flowed[1][4:7] == [1, 5, 0]
    assert flowed[1][8] is True


def test_the_client_reads_a_refusal() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.data_to_send()
    server.refuse_link(0, 0, AmqpError("amqp:not-found", "no such entity"))
    attached, detached = client_frames(server.data_to_send())
    assert attached[1][6] is None
    assert detached[1][1] is True
    assert detached[1][2] == [b"amqp:not-found", b"no such entity", None]


def test_the_client_reads_a_close_with_an_error() -> None:
    server = bare_server()
    server.close(AmqpError("amqp:connection:forced", "shutting down"))
    ((code, fields),) = client_frames(server.data_to_send())
    assert (code, fields[0]) == (0x18, [b"amqp:connection:forced", b"shutting down", None])


@pytest.mark.parametrize("size", [10, 300, 100_000])
def test_the_client_reads_a_delivery(size: int) -> None:
    token = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    message = encode_message(
        header=Header(ttl=1000),
        delivery_annotations={"x-opt-lock-token": token},
        message_annotations={"x-opt-sequence-number": Long(7)},
        properties=Properties(message_id="m", correlation_id=token),
        application_properties={"k": True},
        data=bytes(size),
    )
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=1)
    pair.to_client = b""
    pair.server.send(channel, handle, token.bytes_le, message)
    pair.take()
    frames = client_frames(pair.to_client)
    first = frames[0][1]
    assert first[:5] == [handle, 0, token.bytes_le, 0, False]
    assert [bool(fields[5]) for _, fields in frames] == [True] * (len(frames) - 1) + [False]
    decoded: Any = client_decode.decode_payload(
        memoryview(b"".join(bytes(fields[11]) for _, fields in frames))
    )
    assert decoded.header.ttl == 1000
    assert decoded.delivery_annotations == {b"x-opt-lock-token": token}
    assert decoded.message_annotations == {b"x-opt-sequence-number": 7}
    assert decoded.properties.message_id == b"m"
    assert decoded.properties.correlation_id == token
    assert b"".join(decoded.data) == bytes(size)


def test_the_client_reads_our_settlements() -> None:
    """Source: wire contract 4.3: it compares the name of the state."""
    pair = opened_pair()
    channel, _ = pair.attach(Role.RECEIVER)
    pair.to_client = b""
    error = AmqpError("com.microsoft:message-lock-lost", "expired")
    given: list[DeliveryState] = [ACCEPTED, Modified(True, False), Rejected(), Rejected(error)]
    for number, state in enumerate(given):
        pair.server.disposition(channel, Role.SENDER, 2 * number, 2 * number, state)
    pair.take()
    fields = [fields for _, fields in client_frames(pair.to_client)]
    assert [entry[:4] for entry in fields] == [[False, number, number, True] for number in (0, 2, 4, 6)]
    states = [entry[4] for entry in fields]
    assert [list(state) for state in states[:3]] == [["accepted"], ["modified"], ["rejected"]]
    assert states[3]["rejected"][0] == [b"com.microsoft:message-lock-lost", b"expired", None]


def test_we_read_the_clients_whole_conversation() -> None:
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    init = performatives.SASLInit(mechanism=b"ANONYMOUS", initial_response=b"anonymous", hostname="h")
    (event,) = server.receive(SASL_HEADER + client_bytes(init, sasl=True), 0)
    assert event == SaslInit("ANONYMOUS", b"anonymous", "h")
    server.sasl_outcome()
    opening = filled(
        performatives.OpenFrame,
        container_id="SBSender-1",
        hostname="localhost",
        max_frame_size=1048576,
        channel_max=65535,
        idle_timeout=None,
        properties={"product": "azure-servicebus"},
    )
    attaching = filled(
        performatives.AttachFrame,
        name="link",
        handle=1,
        role=False,
        send_settle_mode=0,
        rcv_settle_mode=0,
        source=endpoints.Source(address="client"),  # type: ignore[call-arg]  # mypy does not see its defaults
        target=endpoints.Target(address="amqps://localhost/queue"),  # type: ignore[call-arg]  # mypy does not see its defaults
        initial_delivery_count=0,
        max_message_size=1048576,
        properties={b"com.microsoft:timeout": 5000},
    )
    events = server.receive(
        AMQP_HEADER
        + client_bytes(opening)
        + client_bytes(
            filled(
                performatives.BeginFrame,
                remote_channel=None,
                next_outgoing_id=0,
                incoming_window=65536,
                outgoing_window=65536,
                handle_max=4294967295,
            ),
            channel=1,
        )
        + client_bytes(attaching, channel=1),
        0,
    )
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun, LinkAttached]
    opened = only(events, ConnectionOpened)
    assert (opened.container_id, opened.properties["product"]) == ("SBSender-1", "azure-servicebus")
    attached = only(events, LinkAttached)
    assert isinstance(attached.source, Source)
    assert isinstance(attached.target, Target)
    assert (attached.source.address, attached.target.address) == ("client", "amqps://localhost/queue")
    assert (attached.role, attached.properties) == (Role.SENDER, {"com.microsoft:timeout": 5000})


def _client_message(body: bytes) -> bytes:
    out = bytearray()
    message = ClientMessage(
        header=ClientHeader(ttl=5000),
        properties=ClientProperties(message_id="m1", group_id="session"),
        message_annotations={b"x-opt-partition-key": "session"},
        application_properties={"key": "value"},
        data=[body],
    )
    client_encode.encode_payload(out, message)
    return bytes(out)


def test_we_read_the_clients_transfers_and_settlements() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER) + attach(1, Role.RECEIVER, name="in"), 0)
    server.accept_link(0, 0, max_message_size=1 << 20)
    server.accept_link(0, 1)
    payload = _client_message(b"body" * 100)
    half = len(payload) // 2

    def transferred(identifier: int, part: bytes, more: bool) -> bytes:
        return client_bytes(
            filled(
                performatives.TransferFrame,
                handle=0,
                delivery_id=identifier,
                delivery_tag=identifier.to_bytes(4, "big"),
                message_format=0,
                settled=False,
                more=more,
                rcv_settle_mode=None,
                state=None,
                resume=None,
                aborted=None,
                batchable=None,
                payload=part,
            )
        )

    parts = [(0, payload, False), (1, payload[:half], True), (1, payload[half:], False), (2, payload, False)]
    events = server.receive(b"".join(transferred(*part) for part in parts), 0)
    received = every(events, DeliveryReceived)
    assert [event.delivery_tag for event in received] == [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2"]
    assert [event.payload for event in received] == [payload] * 3
    sections = scan(payload)
    assert (sections.decode_header().ttl, sections.decode_properties().group_id) == (5000, "session")
    assert sections.decode_message_annotations() == {"x-opt-partition-key": "session"}
    assert sections.decode_application_properties() == {"key": "value"}
    assert sections.decode_body() == [("data", b"body" * 100)]

    (granted,) = server.receive(
        client_bytes(
            filled(
                performatives.FlowFrame,
                next_incoming_id=0,
                incoming_window=65536,
                next_outgoing_id=3,
                outgoing_window=65536,
                handle=1,
                delivery_count=0,
                link_credit=10,
            )
        ),
        0,
    )
    assert granted == LinkFlow(0, 1, 10, False)
    for _ in range(5):
        server.send(0, 1, b"t" * 16, b"")
    modified: Any = outcomes.Modified  # mypy does not see its defaults
    states: list[tuple[Any, DeliveryState]] = [
        (outcomes.Accepted(), ACCEPTED),
        (modified(delivery_failed=True), Modified(True, False, None)),
        (modified(delivery_failed=True, undeliverable_here=True), Modified(True, True, None)),
    ]
    for number, (theirs, ours) in enumerate(states):
        disposed = filled(
            performatives.DispositionFrame,
            role=True,
            first=number,
            last=number,
            settled=False,
            state=theirs,
            batchable=None,
        )
        (event,) = server.receive(client_bytes(disposed), 0)
        assert event == DispositionReceived(0, Role.RECEIVER, number, number, False, ours)


def test_a_detach_behind_the_end_of_its_session_is_read_over() -> None:
    """The Python client ends its session first and then detaches the session's links."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    events = server.receive(
        client_bytes(filled(performatives.EndFrame, error=None))
        + client_bytes(filled(performatives.DetachFrame, handle=0, closed=True, error=None)),
        0,
    )
    assert [type(event) for event in events] == [LinkDetached, SessionEnded]
    assert server.stalled is False
    only(server.receive(begin(), 0), SessionBegun)
