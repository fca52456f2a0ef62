"""Messages copied by browsing: bit for bit, in order, resumed, and nothing is taken."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.types import Long, Symbol, Timestamp
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.client import (
    ABANDON,
    BlockingConnection,
    ConnectionString,
    Header,
    Properties,
    ReceiveMode,
    encode_message,
    scan,
)
from peeklock.client.browsing import NUMBER_MAX, last_number
from peeklock.moving.administration import Administration
from peeklock.moving.copying import (
    DEAD_LETTERS,
    CopyError,
    copy_messages,
    peek,
    places,
    queue_maker,
)
from peeklock.moving.definitions import Definitions
from peeklock.testing.served import ServedBroker
from tests.moving.test_administration import administration_of


@given(st.sets(st.integers(1, NUMBER_MAX), max_size=9), st.integers(0, 9))
def test_the_last_number_is_found_in_few_steps(numbers: set[int], dense: int) -> None:
    there = numbers | set(range(1, dense + 1))
    asked = []

    def is_there(number: int) -> bool:
        asked.append(number)
        return any(each >= number for each in there)

    assert last_number(is_there) == max(there, default=0)
    assert len(asked) <= 100


def test_each_place_has_a_queue_of_its_own() -> None:
    entities: list[Description] = [
        QueueDescription("news/sport"),
        QueueDescription("topics/news/sport"),
        TopicDescription("news"),
        SubscriptionDescription("news", "sport"),
        TopicDescription("news/sport/all"),
        SubscriptionDescription("news/sport/all", "x"),
    ]
    found = list(places(Definitions("n", "standard", {each.name.lower(): each for each in entities}, {})))
    assert len(found) == 8
    assert len({queue for _, queue in found}) == 8
    assert ("news/Subscriptions/sport", "browse/topics/news/sport") in found
    assert (f"news/sport/{DEAD_LETTERS}", "browse/dead-letters/queues/news/sport") in found


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture
def connection(served: ServedBroker) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(served.connection_string, timeout_s=10))
    yield made
    made.close()


@pytest.fixture(scope="module")
def administration(served: ServedBroker) -> Administration:
    return administration_of(served.connection_string)


Copy = Callable[[str, str], tuple[int, int] | None]


@pytest.fixture
def copy(connection: BlockingConnection, administration: Administration) -> Copy:
    """Copy a place to a queue; return how many were copied, and after which number."""
    make_queue = queue_maker(administration, "standard")

    def run(place: str, queue: str) -> tuple[int, int] | None:
        counts: list[int] = []
        copied = copy_messages(connection, place, connection, queue, make_queue, counts.append)
        assert counts == sorted(counts)
        return None if copied is None else (copied.count, copied.before)

    return run


def send(connection: BlockingConnection, queue: str, *payloads: bytes) -> None:
    sender = connection.sender(queue)
    for payload in payloads:
        sender.send(payload)
    sender.flush()
    sender.close()


def test_copies_are_the_messages_and_say_where_they_come_from(
    connection: BlockingConnection, administration: Administration, copy: Copy
) -> None:
    """Req: A-02."""
    administration.create(QueueDescription("from"))
    later = round(time.time() * 1000) + 3_600_000
    payloads = [
        encode_message(
            header=Header(priority=7, ttl=600_000),
            message_annotations={"x-opt-partition-key": "k", "own": Symbol("s")},
            properties=Properties(message_id=b"bytes", subject="one", group_id="k", correlation_id=Long(9)),
            application_properties={"n": Long(1), "t": Timestamp(5)},
            sequence=[1, "two"],
            footer={"f": 1},
        ),
        encode_message(message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(later)}, value="later"),
        encode_message(data=[b"a", b"b"]),
    ]
    send(connection, "from", *payloads)
    before = peek(connection, "from", 0, 10)
    assert copy("from", "browse/queues/from") == (3, 0)
    assert peek(connection, "from", 0, 10) == before
    found = [scan(each) for each in peek(connection, "browse/queues/from", 0, 10)]
    by_number = {
        scan(each).decode_message_annotations()["x-opt-sequence-number"]: scan(each) for each in before
    }
    for each in found:
        properties = each.decode_application_properties()
        source = by_number[int(properties["peeklock-source-sequence-number"])]
        assert properties["peeklock-source"] == "from"
        assert properties["peeklock-source-enqueued-time"].endswith("+00:00")
        kept = {name: value for name, value in properties.items() if not name.startswith("peeklock-source")}
        assert repr(kept) == repr(source.decode_application_properties())
        assert each.decode_body() == source.decode_body()
        assert each.decode_footer() == source.decode_footer()
        assert each.decode_header().ttl == source.decode_header().ttl
        assert each.decode_properties().subject == source.decode_properties().subject
        assert each.decode_message_annotations().get("own") == source.decode_message_annotations().get("own")
        assert each.decode_message_annotations()["x-opt-message-state"] == 0
    states = [each.decode_application_properties()["peeklock-source-state"] for each in found]
    assert sorted(states) == ["Active", "Active", "Scheduled"]
    assert found[0].decode_properties().message_id == b"bytes"


def test_a_run_goes_on_after_the_last_copy(
    connection: BlockingConnection, administration: Administration, copy: Copy
) -> None:
    administration.create(QueueDescription("long", requires_session=True))
    assert copy("long", "copies/long") is None
    payloads = [
        encode_message(properties=Properties(group_id=f"s{n % 3}"), data=f"{n}".encode()) for n in range(250)
    ]
    send(connection, "long", *payloads[:120])
    assert copy("long", "copies/long") == (120, 0)
    assert copy("long", "copies/long") == (0, 120)
    send(connection, "long", *payloads[120:])
    assert copy("long", "copies/long") == (130, 120)
    found: list[bytes] = []
    while more := peek(connection, "copies/long", len(found) + 1, 100):
        found += more
    assert [scan(each).decode_body()[0][1] for each in found] == [f"{n}".encode() for n in range(250)]


@contextmanager
def breaking(upstream: int, bytes_max: int) -> Iterator[int]:
    """Pass connections on to a port, and break each after so many bytes of the client; yield the port.

    The broker gets these bytes; its answers to the last ones are lost.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    beyond = socket.create_connection(("127.0.0.1", upstream))
                    for of, to, count in ((client, beyond, bytes_max), (beyond, client, 1 << 40)):
                        threading.Thread(target=pass_on, args=(of, to, count), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def pass_on(of: socket.socket, to: socket.socket, count: int) -> None:
    """Pass bytes on until one side ends or so many have passed; then end both."""
    with suppress(OSError):
        while count > 0 and (data := of.recv(min(count, 65_536))):
            to.sendall(data)
            count -= len(data)
    for each in (of, to):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_breaks_leaves_no_gap_and_no_copy_twice(
    served: ServedBroker, connection: BlockingConnection, administration: Administration
) -> None:
    """Copies arrive whose acknowledgements are lost."""
    administration.create(QueueDescription("broken"))
    send(connection, "broken", *(encode_message(data=b"%d" % n + bytes(900)) for n in range(600)))
    make_queue = queue_maker(administration, "standard")
    counts: list[int] = []
    with breaking(served.port, 150_000) as port:
        text = served.connection_string.replace(f":{served.port}", f":{port}")
        target = BlockingConnection(ConnectionString.parse(text, timeout_s=30))
        copied = copy_messages(connection, "broken", target, "copies/broken", make_queue, counts.append)
        target.close()
    assert copied is not None
    assert (copied.count, copied.before) == (600, 0)
    assert counts == sorted(counts)
    found: list[bytes] = []
    while more := peek(connection, "copies/broken", len(found) + 1, 100):
        found += more
    assert [int(scan(each).decode_body()[0][1].rstrip(b"\0")) for each in found] == list(range(600))


def test_dead_letters_are_copied(
    connection: BlockingConnection, administration: Administration, copy: Copy
) -> None:
    administration.create(QueueDescription("ill", max_delivery_count=1))
    send(connection, "ill", encode_message(data=b"x"))
    receiver = connection.receiver("ill", ReceiveMode.PEEK_LOCK)
    for delivery in receiver.receive(max_count=1, timeout_s=5):
        receiver.settle(delivery, ABANDON)
    receiver.flush()
    receiver.close()
    assert copy("ill", "browse/queues/ill") is None
    assert copy(f"ill/{DEAD_LETTERS}", "browse/dead-letters/queues/ill") == (1, 0)
    [found] = peek(connection, "browse/dead-letters/queues/ill", 0, 10)
    properties = scan(found).decode_application_properties()
    assert properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert properties["peeklock-source"] == f"ill/{DEAD_LETTERS}"


def test_a_queue_with_other_messages_is_refused(
    connection: BlockingConnection, administration: Administration, copy: Copy
) -> None:
    for name in ("one", "taken"):
        administration.create(QueueDescription(name))
        send(connection, name, encode_message(data=b"x"))
    with pytest.raises(CopyError, match="'taken' has a message that is not a copy from 'one': empty"):
        copy("one", "taken")
    with pytest.raises(CopyError, match="is too long for a queue"):
        copy("one", "x" * 261)
    assert len(peek(connection, "taken", 0, 10)) == 1
