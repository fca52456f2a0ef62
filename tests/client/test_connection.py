"""The client under the data source, against a broker; the official client is the reference."""

from __future__ import annotations

import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Array, Int, Long
from peeklock.client import connection as module
from peeklock.client.connection import BlockingConnection, connection, wall_ms
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import MESSAGE_LOCK_LOST, TIMEOUT, UNAUTHORIZED, OptionError, ServiceBusError
from peeklock.client.links import ABANDON, COMPLETE, DEFER, NEXT, Delivery, ReceiveMode, dead_letter
from peeklock.testing.served import ServedBroker
from tests.spark.relay import Relay

PEEK = "com.microsoft:peek-message"
MakeQueue = Callable[..., str]


def message(number: int, *, size: int = 10, **properties: Any) -> bytes:
    return encode_message(
        properties=Properties(message_id=str(number), **properties), data=str(number).encode().ljust(size)
    )


def ids(payloads: list[bytes]) -> list[str]:
    return [scan(payload).decode_properties().message_id for payload in payloads]


def peek(made: BlockingConnection, path: str, count: int = 100) -> list[bytes]:
    body = {"from-sequence-number": Long(0), "message-count": Int(count)}
    return [one["message"] for one in made.management(path).request(PEEK, body).body.get("messages", [])]


@pytest.fixture
def relay(broker: ServedBroker) -> Iterator[Relay]:
    with Relay(broker.port) as made:
        yield made


@pytest.fixture
def relayed(relay: Relay, broker: ServedBroker) -> Iterator[BlockingConnection]:
    """A connection that can be cut."""
    text = broker.connection_string.replace(f":{broker.port};", f":{relay.port};")
    made = BlockingConnection(ConnectionString.parse(text, timeout_s=10))
    yield made
    made.close()


# Settings


def test_a_connection_string_is_read_as_official_clients_do() -> None:
    found = ConnectionString.parse(
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a+/=;EntityPath=q"
    )
    assert (found.host, found.port, found.tls) == ("ns.servicebus.windows.net", 5671, True)
    assert (found.key_name, found.key, found.entity_path) == ("n", "a+/=", "q")
    plain = ConnectionString.parse(
        "endpoint=sb://localhost:1234;sharedaccesskeyname=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    )
    assert (plain.host, plain.port, plain.tls) == ("localhost", 1234, False)
    default = ConnectionString.parse(
        "Endpoint=sb://[::1];SharedAccessSignature=SharedAccessSignature sr=a;UseDevelopmentEmulator=true"
    )
    assert (default.host, default.port, default.signature) == ("::1", 5672, "SharedAccessSignature sr=a")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no Endpoint"),
        ("Endpoint=localhost;SharedAccessKeyName=n;SharedAccessKey=verysecret", "has no Endpoint"),
        ("Endpoint=sb://h:x;SharedAccessKeyName=n;SharedAccessKey=verysecret", "cannot be read"),
        ("Endpoint=sb://h;SharedAccessKey=verysecret", "lacks SharedAccessKeyName"),
        ("Endpoint=sb://h;SharedAccessKeyName=n", "lacks SharedAccessKey"),
        ("Endpoint=sb://h", "needs either"),
        ("Endpoint=sb://h;SharedAccessKeyName=n;Key=verysecret", "has 'Key'"),
        ("Endpoint=sb://h;SharedAccessKeyName=n;verysecret", "a part without '='"),
        ("Endpoint=sb://h;SharedAccessKeyName=n;verysecret+0/1=", "a part with an unknown name"),
        (
            "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=verysecret;UseDevelopmentEmulator=1",
            "neither",
        ),
    ],
)
def test_a_wrong_connection_string_is_refused_without_its_secret(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        ConnectionString.parse(text)
    assert "connection string" in str(raised.value)
    assert "verysecret" not in str(raised.value)


def test_settings_travel_and_keep_their_secret(settings: ConnectionString) -> None:
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.key not in repr(settings)


def test_a_process_has_one_connection_for_equal_settings(settings: ConnectionString) -> None:
    assert connection(settings) is connection(pickle.loads(pickle.dumps(settings)))
    child = os.fork()
    if child == 0:
        os._exit(0 if not module._connections else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a child has the parent's socket"


# Management


def test_many_requests_are_under_way_at_a_time(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    for number in range(500):
        sender.send(message(number))
    sender.flush()
    node = own.management(queue)
    tickets = [
        node.start(PEEK, {"from-sequence-number": Long(number), "message-count": Int(1)})
        for number in range(1, 501)
    ]
    found = [node.wait(ticket).body["messages"][0]["message"] for ticket in reversed(tickets)]
    assert ids(found) == [str(number) for number in reversed(range(500))]


def test_nothing_there_is_an_answer(own: BlockingConnection, make_queue: MakeQueue) -> None:
    response = own.management(make_queue()).request(
        PEEK, {"from-sequence-number": Long(0), "message-count": Int(1)}
    )
    assert (response.status, response.body) == (204, {})


def test_what_the_broker_refuses_names_operation_entity_and_condition(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    with pytest.raises(ServiceBusError) as raised:
        own.management(queue).request("peeklock:nonsense", {})
    assert raised.value.condition == "amqp:not-implemented"
    assert not raised.value.retryable
    assert f"/{queue}: peeklock:nonsense" in str(raised.value)
    with pytest.raises(ServiceBusError, match=r"correct its path") as raised:
        peek(own, "missing")
    assert raised.value.condition == "amqp:not-found"


def test_requests_survive_a_break(relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = relayed.sender(queue)
    sender.send(message(1))
    sender.flush()
    node = relayed.management(queue)
    for _ in range(5):
        tickets = [
            node.start(PEEK, {"from-sequence-number": Long(0), "message-count": Int(1)}) for _ in range(20)
        ]
        relay.cut()
        assert all(len(node.wait(ticket).body["messages"]) == 1 for ticket in tickets)


def test_what_must_not_be_asked_twice_fails_with_the_break(
    relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue
) -> None:
    node = relayed.management(make_queue())
    body = {"from-sequence-number": Long(0), "message-count": Int(1)}
    node.request(PEEK, body)
    relay.cut()
    ticket = node.start(PEEK, body, repeat=False)  # nobody has noticed the break yet
    with pytest.raises(ServiceBusError) as raised:
        node.wait(ticket)
    assert raised.value.retryable
    assert node.request(PEEK, body).status == 204


# Who we are


def test_a_wrong_key_names_the_connection_string_and_not_the_key(
    broker: ServedBroker, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    text = broker.connection_string.replace("SAS_KEY_VALUE", "verysecret")
    wrong = BlockingConnection(ConnectionString.parse(text))
    with pytest.raises(ServiceBusError) as raised:
        peek(wrong, queue)
    assert raised.value.condition == UNAUTHORIZED
    assert "connection string" in str(raised.value)
    assert f"/{queue}" in str(raised.value)
    assert "verysecret" not in str(raised.value)
    wrong.close()


def test_a_token_is_renewed_before_it_runs_out(
    relay: Relay, broker: ServedBroker, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    now_ms = wall_ms()
    text = broker.connection_string.replace(f":{broker.port};", f":{relay.port};")
    made = BlockingConnection(ConnectionString.parse(text), now_ms=lambda: now_ms)
    peek(made, queue)
    now_ms += 53 * 60_000
    peek(made, queue)
    assert relay.asked.count(b"put-token") == 1
    now_ms += 60_000
    peek(made, queue)
    peek(made, queue)
    assert relay.asked.count(b"put-token") == 2
    made.close()


def test_the_pauses_between_calls_are_used(
    relay: Relay, broker: ServedBroker, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks anything, and a new token is put all the same."""
    queue = make_queue()
    now_ms = wall_ms()
    text = broker.connection_string.replace(f":{broker.port};", f":{relay.port};")
    made = BlockingConnection(ConnectionString.parse(text), now_ms=lambda: now_ms)
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    peek(made, queue)
    now_ms += 59 * 60_000
    deadline = time.monotonic() + 10
    while relay.asked.count(b"put-token") < 2:
        assert time.monotonic() < deadline
    made.close()
    made.close()
    assert peek(made, queue) == [], "a closed connection is made anew"
    made.close()


def test_a_token_that_the_broker_holds_for_expired_is_put_anew(tmp_path: Path) -> None:
    """The client's clock is an hour behind, so that it takes a token for good that has run out.

    Req: X-01
    """
    from azure.servicebus.management import ServiceBusAdministrationClient

    from peeklock.demo.broker import BrokerProcess

    with BrokerProcess(tmp_path) as process:
        with ServiceBusAdministrationClient.from_connection_string(
            process.connection_string.replace(f":{process.amqp_port};", f":{process.http_port};"),
            connection_verify=False,
        ) as administration:
            administration.create_queue("late")
        made = BlockingConnection(
            ConnectionString.parse(process.connection_string), now_ms=lambda: wall_ms() - 3_600_000 + 1_500
        )
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            assert peek(made, "late") == []
        made.close()
        assert process.stop() == 0


def test_nobody_there_is_told_within_the_time_given() -> None:
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    made = BlockingConnection(ConnectionString.parse(text, timeout_s=0.3))
    with pytest.raises(ServiceBusError, match=r"sb://localhost:1/.*It was retried for") as raised:
        peek(made, "q")
    assert raised.value.retryable


def test_the_pause_between_attempts_is_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is tried again keeps no other thread from the connection: it may have locks to renew."""
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    made = BlockingConnection(ConnectionString.parse(text, timeout_s=0.3))
    pausing, go_on = threading.Event(), threading.Event()

    def pause(_: float) -> None:
        pausing.set()
        go_on.wait(10)

    def ask() -> None:
        with pytest.raises(ServiceBusError, match="It was retried for"):
            peek(made, "q")

    monkeypatch.setattr(time, "sleep", pause)
    asking = threading.Thread(target=ask)
    asking.start()
    assert pausing.wait(10)
    free = made.lock.acquire(timeout=1)
    go_on.set()
    if free:
        made.lock.release()
    asking.join()
    assert free


def test_waiting_for_another_thread_costs_no_time_of_a_request(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """Else the connection would count as dead, as its peer did not answer in time."""
    node = own.management(make_queue())
    body = {"from-sequence-number": Long(0), "message-count": Int(1)}
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(node.request(PEEK, body, timeout_s=0.2).status))
    node.request(PEEK, body)
    with own.lock:
        engine = own.engine
        asking.start()
        time.sleep(0.4)
    asking.join()
    assert statuses == [204]
    assert own.engine is engine


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"not PEM", "has no certificate in PEM"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "has a certificate that cannot be read",
        ),
    ],
)
def test_a_file_without_certificates_is_refused_before_anything_connects(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    text = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k"
    with pytest.raises(OptionError, match=f"{re.escape(str(file))}.*{problem}"):
        ConnectionString.parse(text, ca_file=str(file))


def test_over_tls_only_trusted_certificates_are_taken(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from azure.servicebus.management import ServiceBusAdministrationClient

    from peeklock.demo.broker import BrokerProcess
    from peeklock.server.tls.certificates import make_pair

    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for path, pem in zip(
        (certificate, key), make_pair(["localhost", "127.0.0.1"], datetime.now(UTC)), strict=True
    ):
        path.write_bytes(pem)
    arguments = (f"--tls-cert={certificate}", f"--tls-key={key}")
    with BrokerProcess(tmp_path, arguments) as process:
        with ServiceBusAdministrationClient.from_connection_string(
            process.connection_string.replace(f":{process.amqp_port};", f":{process.http_port};"),
            connection_verify=str(certificate),
        ) as administration:
            administration.create_queue("safe")
        text = process.connection_string.replace("UseDevelopmentEmulator=true;", "")
        assert "Emulator" not in text
        distrusting = BlockingConnection(ConnectionString.parse(text))
        with pytest.raises(ServiceBusError, match="PEM file"):
            peek(distrusting, "safe")
        # A process that has no such file, as an executor of Spark, gets the certificates with the settings.
        copy = tmp_path / "ca.pem"
        copy.write_bytes("# größer\n".encode() + certificate.read_bytes())
        settings = pickle.loads(pickle.dumps(ConnectionString.parse(text, ca_file=str(copy))))
        copy.unlink()
        made = BlockingConnection(settings)
        sender = made.sender("safe")
        for number in range(200):
            sender.send(message(number, size=20_000))
        sender.flush()
        assert len(peek(made, "safe", 8)) == 8
        made.close()
        assert process.stop() == 0


# Sending


def test_what_we_send_the_official_client_receives(
    own: BlockingConnection, make_queue: MakeQueue, client: Any
) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    sender.send(message(0, subject="first", content_type="text/plain"))
    sender.send_batch([message(number, subject="batched") for number in range(1, 5)])
    sender.flush()
    with client.get_queue_receiver(queue) as receiver:
        came = receiver.receive_messages(max_message_count=5, max_wait_time=10)
    assert [one.message_id for one in came] == ["0", "1", "2", "3", "4"]
    assert [one.subject for one in came] == ["first", *["batched"] * 4]
    assert b"".join(came[0].body).strip() == b"0"


def test_a_refused_message_is_named_by_place_and_tag(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    sender = own.sender(queue)
    sender.send(message(0, group_id="a"))
    sender.send(message(1), "row 17")
    with pytest.raises(ServiceBusError) as raised:
        sender.flush()
    assert (raised.value.index, raised.value.tag) == (1, "row 17")
    assert "message 1 (row 17)" in str(raised.value)
    with pytest.raises(ServiceBusError):
        sender.send(message(2, group_id="a"))


def test_a_message_over_the_limit_is_refused_before_it_is_sent(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    assert sender.message_bytes_max == 262_144
    sender.send(message(0))
    with pytest.raises(ServiceBusError, match=r"message 1.*the limit is 262144"):
        sender.send(message(1, size=262_144))


def test_a_batch_is_stored_whole_or_not_at_all(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    sender = own.sender(queue)
    sender.send_batch([message(0, group_id="a"), message(1)], "slice 3")
    with pytest.raises(ServiceBusError, match=r"message 0 \(slice 3\).*a batch of 2"):
        sender.flush()
    assert peek(own, queue) == []


def test_what_had_no_outcome_at_a_break_is_sent_again(
    relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue
) -> None:
    """With duplicate detection every message is there once.

    Req: X-02
    """
    queue = make_queue(requires_duplicate_detection=True)
    sender = relayed.sender(queue, in_flight_max=100)
    for number in range(3000):
        if number % 700 == 350:
            relay.cut()
        sender.send(message(number))
    sender.flush()
    assert sorted(map(int, ids(peek(relayed, queue, 4000)))) == [*range(3000)]


def test_in_flight_is_bounded_by_bytes(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = own.sender(queue, in_flight_bytes_max=300_000)
    most = 0
    for number in range(60):
        sender.send(message(number, size=100_000))
        most = max(most, sender._bytes)
    sender.flush()
    assert most < 500_000
    assert sender._bytes == 0


# Receiving


def test_receive_gives_what_is_there_and_settles(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    for number in range(30):
        sender.send(message(number))
    sender.flush()
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    first = receiver.receive(10, 5)
    assert ids([one.payload for one in first]) == [str(number) for number in range(10)]
    receiver.settle(first[0], DEFER)
    receiver.settle(first[1], ABANDON)
    for one in first[2:]:
        receiver.settle(one, COMPLETE)
    receiver.flush()
    rest = receiver.receive(100, 5)
    assert ids([one.payload for one in rest]) == ["1", *(str(number) for number in range(10, 30))]
    assert scan(rest[0].payload).decode_header().delivery_count == 1
    for one in rest:
        receiver.settle(one, COMPLETE)
    receiver.flush()
    assert ids(peek(own, queue)) == ["0"]
    assert receiver.receive(1, 0) == []


@pytest.mark.parametrize(
    ("reason", "description"), [("Bad", "no price"), ("Größe", None), (None, "no price"), (None, None)]
)
def test_a_dead_letter_has_reason_and_description(
    own: BlockingConnection, make_queue: MakeQueue, reason: str | None, description: str | None
) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    sender.send(message(0))
    sender.flush()
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    receiver.settle(receiver.receive(1, 5)[0], dead_letter(reason, description))
    receiver.flush()
    assert receiver.settled_count == 1
    [dead] = peek(own, f"{queue}/$DeadLetterQueue")
    given = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    assert scan(dead).decode_application_properties() == {
        key: text for key, text in given.items() if text is not None
    }


def test_a_wait_stops_when_it_is_asked_to(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    receiver = own.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    asked = iter((False, True))
    started = time.monotonic()
    assert receiver.receive(1, 60, lambda: next(asked)) == []
    assert time.monotonic() - started < 30
    sender = own.sender(queue)
    sender.send(message(0))
    sender.flush()
    assert ids(peek(own, queue)) == ["0"], "no credit is left"


def test_a_deferred_message_is_received_by_its_number(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = own.sender(queue)
    sender.send(message(0))
    sender.flush()
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    receiver.settle(receiver.receive(1, 5)[0], DEFER)
    receiver.flush()
    found = own.management(queue).request(
        "com.microsoft:receive-by-sequence-number",
        {"sequence-numbers": Array.of(Long, [1]), "receiver-settle-mode": Int(0)},
    )
    assert ids([one["message"] for one in found.body["messages"]]) == ["0"]
    assert peek(own, queue) == []


def test_waiting_for_a_message_ends_when_it_comes(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    receiver = own.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    assert receiver.receive(5, 0) == []
    other = BlockingConnection(own.settings)
    came: list[Delivery] = []
    waiting = threading.Thread(target=lambda: came.extend(receiver.receive(5, 30)))
    waiting.start()
    sender = other.sender(queue)
    sender.send(message(7))
    sender.flush()
    waiting.join(20)
    other.close()
    assert ids([one.payload for one in came]) == ["7"]
    assert peek(own, queue) == []


def test_sessions_are_taken_one_after_the_other(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    sender = own.sender(queue)
    for number in range(6):
        sender.send(message(number, group_id="ab"[number % 2]))
    sender.flush()
    found: dict[str | None, list[str]] = {}
    for _ in range(2):
        receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK, NEXT)
        came = receiver.receive(10, 1)
        found[receiver.session_id] = ids([one.payload for one in came])
        assert receiver.locked_until_ms > wall_ms()
        for one in came:
            receiver.settle(one, COMPLETE)
        receiver.flush()
        receiver.close()
    assert found == {"a": ["0", "2", "4"], "b": ["1", "3", "5"]}
    none_left = own.receiver(queue, ReceiveMode.PEEK_LOCK, NEXT)
    none_left.session_wait_ms = 1
    with pytest.raises(ServiceBusError) as raised:
        none_left.receive(1, 1)
    assert raised.value.condition == TIMEOUT
    named = own.receiver(queue, ReceiveMode.PEEK_LOCK, "other")
    named.start()
    assert named.session_id == "other"
    assert named.receive(1, 0) == []
    with pytest.raises(ServiceBusError, match="Another receiver holds the session"):
        own.receiver(queue, ReceiveMode.PEEK_LOCK, "other").start()


def test_after_a_break_a_delivery_cannot_be_settled_and_comes_again(
    relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    sender = relayed.sender(queue)
    sender.send(message(0))
    sender.flush()
    receiver = relayed.receiver(queue, ReceiveMode.PEEK_LOCK)
    (before,) = receiver.receive(1, 5)
    relay.cut()
    (after,) = receiver.receive(1, 5)
    with pytest.raises(ServiceBusError) as raised:
        receiver.settle(before, COMPLETE)
    assert raised.value.condition == MESSAGE_LOCK_LOST
    receiver.settle(after, COMPLETE)
    receiver.flush()
    assert peek(relayed, queue) == []


def test_what_was_deleted_on_arrival_is_returned_after_a_break(
    relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue
) -> None:
    """The broker has them no more. Req: L-01."""
    queue = make_queue()
    sender = relayed.sender(queue)
    for number in range(5):
        sender.send(message(number))
    sender.flush()
    receiver = relayed.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    with relayed.lock:
        receiver.start()
        receiver._grant(3, drain=False)
        while len(receiver._arrived) < 3:
            relayed.exchange(1)
        relay.cut()
        with pytest.raises(ServiceBusError):
            relayed.exchange(5)
    assert [len(receiver.receive(2, 0)), relayed._engine] == [2, None], "no connection is needed"
    found = [delivery.payload for _ in range(2) for delivery in receiver.receive(3, 1)]
    assert ids(found) == ["2", "3", "4"]


def test_a_settlement_that_is_refused_is_raised_by_flush(
    broker: ServedBroker, own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue(lock_duration=timedelta(seconds=5))
    sender = own.sender(queue)
    sender.send(message(0))
    sender.flush()
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    (late,) = receiver.receive(1, 5)
    broker.advance(timedelta(seconds=6))
    receiver.settle(late, COMPLETE)
    with pytest.raises(ServiceBusError) as raised:
        receiver.flush()
    assert raised.value.condition == MESSAGE_LOCK_LOST
