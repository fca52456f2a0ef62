"""How locks end before their time: by a change of their entity, a restart, the end of a connection."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError, SessionLockLostError
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.amqp.types import Array, Long
from peeklock.demo.broker import READY, BrokerProcess
from peeklock.testing.served import ServedBroker
from tests.interop.clients import Background, Links
from tests.interop.helpers import assert_empty, bodies, send, take, take_one
from tests.interop.own_client import OwnClient, tokens

LOCK_LOST = "com.microsoft:message-lock-lost"
ROOT = Path(__file__).parents[2]

# A change of the entity, and a restart (L-12)


def _change(administration: Any, queue: str, **settings: Any) -> None:
    properties = administration.get_queue(queue)
    for name, value in settings.items():
        setattr(properties, name, value)
    administration.update_queue(properties)


def test_a_change_of_the_queue_drops_all_locks_of_messages(
    client: Links, queue: str, administration: Any
) -> None:
    """Those of links and those taken by number; nothing is counted. A change of the user's own note and an
    update that changes nothing leave them alone.

    Req: L-12, L-08, L-10, L-11, A-07
    """
    send(client, queue, "1", "2", "3")
    with client.get_queue_receiver(queue) as receiver, client.get_queue_receiver(queue) as other:
        first, second, third = take(receiver, 3)
        receiver.defer_message(third)
        (deferred,) = receiver.receive_deferred_messages(third.sequence_number)
        _change(administration, queue, user_metadata="a note")
        _change(administration, queue)
        receiver.renew_message_lock(second)
        receiver.complete_message(first)
        _change(administration, queue, max_delivery_count=3)
        for lost in (second, deferred):
            with pytest.raises(MessageLockLostError, match="TrackingId:"):
                receiver.complete_message(lost)
            with pytest.raises(MessageLockLostError, match="TrackingId:"):
                receiver.renew_message_lock(lost)
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("2", 0)
        (deferred,) = other.receive_deferred_messages(third.sequence_number)
        assert deferred.delivery_count == 1
        for message in (again, deferred):
            other.complete_message(message)
        assert other.peek_messages(sequence_number=1) == []


def test_a_change_of_the_queue_takes_sessions_from_their_holders(
    client: Links, make_queue: Callable[..., str], administration: Any
) -> None:
    """They are free at once, with their states and nothing counted. A change of the user's own note leaves
    them alone.

    Req: L-12, L-08, G-02, G-03, A-07
    """
    queue = make_queue(requires_session=True)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(
            [ServiceBusMessage(f"{name}{n}", session_id=name) for n in "12" for name in "ab"]
        )
    with (
        client.get_queue_receiver(queue, session_id="a") as receiver,
        client.get_queue_receiver(queue, session_id="b") as other,
    ):
        held = take_one(receiver)
        other.opened()
        receiver.session.set_state("half way")
        _change(administration, queue, user_metadata="a note")
        receiver.session.renew_lock()
        _change(administration, queue, lock_duration=dt.timedelta(seconds=30))
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(held)
        with pytest.raises(SessionLockLostError):
            other.session.get_state()
        with client.get_queue_receiver(queue, session_id="a") as again:
            messages = take(again, 2)
            assert [(str(one), one.delivery_count) for one in messages] == [("a1", 0), ("a2", 0)]
            assert again.session.get_state() == b"half way"
            left_s = (again.session.locked_until_utc - dt.datetime.now(dt.UTC)).total_seconds()
            assert 20 < left_s <= 31


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """This test's own broker, with the queue `s` of sessions."""
    with BrokerProcess(tmp_path) as process:
        with ServiceBusAdministrationClient.from_connection_string(
            process.connection_string, connection_verify=False
        ) as administration:
            administration.create_queue("s", requires_session=True)
        yield process


def test_sessions_are_free_after_the_broker_was_killed_and_keep_their_states(
    mortal: BrokerProcess, background: Background
) -> None:
    """Their holder learns that the lock is lost, and must accept the session again.

    Req: L-12, L-08, G-01, G-02, G-03, G-05, R-01, R-02
    """
    options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 10}
    with ServiceBusClient.from_connection_string(mortal.connection_string) as made:
        client = Links(made, background)
        with (
            client.get_queue_sender("s") as sender,
            client.get_queue_receiver("s", session_id="a") as receiver,
        ):
            sender.send_messages(
                [ServiceBusMessage(body, session_id=body[0]) for body in ("a1", "a2", "a3", "b1")]
            )
            completed, deferred, held = take(receiver, 3)
            receiver.complete_message(completed)
            receiver.defer_message(deferred)
            receiver.session.set_state("half way")
            mortal.kill()
            mortal.start()
            with pytest.raises(ServiceBusConnectionError):
                receiver.complete_message(held)
            with pytest.raises(SessionLockLostError):
                receiver.complete_message(held)
            sender.send_messages(ServiceBusMessage("a4", session_id="a"))
            with client.get_queue_receiver("s", **options) as again:
                assert again.session.session_id == "a"  # it has the oldest message
                assert again.session.get_state() == b"half way"
                messages = take(again, 2)
                assert [(str(one), one.delivery_count) for one in messages] == [("a3", 0), ("a4", 0)]
                assert bodies(again.receive_deferred_messages(deferred.sequence_number)) == ["a2"]
                with client.get_queue_receiver("s", **options) as of_b:
                    assert str(take_one(of_b)) == "b1"
        background.join()


# The end of a connection (L-13)


@pytest.mark.parametrize("how", ["end of stream", "reset", "protocol error"])
def test_a_broken_connection_drops_its_locks_at_once_and_counts(
    any_client: Links, queue: str, broker: BrokerProcess, how: str
) -> None:
    """Those of its links, and that of a deferred message which it asked for by number. Another's locks are
    left alone.

    Req: L-13, L-08, L-10
    """
    send(any_client, queue, "1", "2", "3", "4")
    with (
        any_client.get_queue_receiver(queue) as other,
        OwnClient(broker.amqp_port) as dying,
        OwnClient(broker.amqp_port) as third,
    ):
        kept = take_one(other)
        _, (_, second) = dying.receive(queue, 2)
        deferred = take_one(other)
        other.defer_message(deferred)
        numbers = {"sequence-numbers": Array.of(Long, [deferred.sequence_number])}
        assert dying.ask(queue, "com.microsoft:receive-by-sequence-number", numbers)[0] == 200
        assert_empty(other)
        if how == "protocol error":
            dying.write(b"no frame of AMQP")
            dying.until(lambda: dying.peer.lost)
        else:
            dying.vanish(reset=how == "reset")
        again = take(other, 2)
        assert [(str(one), one.delivery_count) for one in again] == [("2", 1), ("3", 1)]
        (fetched,) = other.receive_deferred_messages(deferred.sequence_number)
        assert fetched.delivery_count == 2
        assert third.settle_by_token(queue, second, "completed") == LOCK_LOST
        for message in (kept, *again, fetched):
            other.complete_message(message)


@pytest.mark.parametrize("how", ["detach", "detach unclosed", "end", "close"])
def test_a_proper_end_leaves_locks_which_anybody_may_settle_by_token(
    any_client: Links, queue: str, broker: BrokerProcess, how: str
) -> None:
    """Even though the peer vanishes afterwards. Nothing is counted.

    Req: L-13, L-14, L-08
    """
    send(any_client, queue, "1", "2", "3")
    with (
        any_client.get_queue_receiver(queue) as other,
        OwnClient(broker.amqp_port) as leaving,
        OwnClient(broker.amqp_port) as third,
    ):
        link, (first, second) = leaving.receive(queue, 2)
        leaving.leave(link, queue, how)
        assert str(take_one(other)) == "3"
        assert_empty(other)
        assert third.settle_by_token(queue, first, "completed") is None
        assert third.settle_by_token(queue, first, "completed") == LOCK_LOST
        assert third.settle_by_token(queue, second, "abandoned") is None
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("2", 1)  # the abandon counts, and nothing else
        browsed = other.peek_messages(max_message_count=9, sequence_number=1)
        assert bodies(browsed) == ["2", "3"]


@pytest.mark.parametrize(
    ("how", "count"), [("detach", 0), ("detach unclosed", 0), ("end", 0), ("close", 0), ("vanish", 1)]
)
def test_a_session_is_free_as_soon_as_its_link_is_gone(
    any_client: Links, make_queue: Callable[..., str], broker: BrokerProcess, how: str, count: int
) -> None:
    """Its messages with it; only a broken connection counts.

    Req: L-13, L-08, G-02
    """
    queue = make_queue(requires_session=True)
    send(any_client, queue, "1", "2", session_id="s")
    with OwnClient(broker.amqp_port) as leaving, OwnClient(broker.amqp_port) as third:
        link, (delivery,) = leaving.receive(queue, 1, session=(None,))
        assert link.session_id == "s"
        if how == "vanish":
            leaving.vanish()
        else:
            leaving.leave(link, queue, how)
        with any_client.get_queue_receiver(queue, session_id="s") as other:
            messages = take(other, 2)
            assert [(str(one), one.delivery_count) for one in messages] == [("1", count), ("2", 0)]
        lost = third.settle_by_token(queue, delivery, "completed")
        assert lost == "com.microsoft:session-lock-lost"


def test_a_worker_that_is_killed_loses_its_message_to_the_next(
    any_client: Links, queue: str, broker: BrokerProcess
) -> None:
    """The official client in a process that is killed: the operating system ends its connection.

    Req: L-13, L-08
    """
    send(any_client, queue, "1")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, broker.connection_string, queue], stdout=subprocess.PIPE, text=True
    )
    with worker, any_client.get_queue_receiver(queue) as other:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        assert_empty(other)
        worker.kill()
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("1", 1)


GRACE = dt.timedelta(seconds=5)


@pytest.fixture
def graced(background: Background) -> Iterator[tuple[ServedBroker, Links]]:
    """A broker that keeps the locks of broken connections for a while, and a client of the queue `q`."""
    with ServedBroker() as broker:
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=False
        ) as administration:
            administration.create_queue("q")
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as made:
            yield broker, Links(made, background)
            background.join()


def test_the_message_of_a_killed_worker_is_back_after_the_grace(graced: tuple[ServedBroker, Links]) -> None:
    """Its lock would have lasted a minute.

    Req: C26, L-13, L-08
    """
    broker, client = graced
    send(client, "q", "1")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, broker.connection_string, "q"], stdout=subprocess.PIPE, text=True
    )
    with worker, client.get_queue_receiver("q") as other:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        worker.kill()
        assert_empty(other)
        broker.advance(GRACE)
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("1", 1)
        other.complete_message(again)


def test_in_the_grace_locks_are_settled_and_renewed_over_another_connection(
    graced: tuple[ServedBroker, Links],
) -> None:
    """A renewed lock belongs to that connection, and gets that one's grace.

    Req: C26, L-13, L-14
    """
    broker, client = graced
    send(client, "q", "1", "2", "3")
    with (
        client.get_queue_receiver("q") as other,
        OwnClient(broker.port) as dying,
        OwnClient(broker.port) as third,
    ):
        _, (first, second, lost) = dying.receive("q", 3)
        dying.vanish()
        assert third.settle_by_token("q", first, "completed") is None
        assert third.ask("q", "com.microsoft:renew-lock", {"lock-tokens": tokens(second)})[0] == 200
        broker.advance(GRACE)
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("3", 1)
        assert third.settle_by_token("q", lost, "completed") == LOCK_LOST
        other.complete_message(again)
        third.vanish()
        assert_empty(other)
        broker.advance(GRACE)
        again = take_one(other)
        assert (str(again), again.delivery_count) == ("2", 1)
        other.complete_message(again)


WORKER = """
import sys
import time
from azure.servicebus import ServiceBusClient

with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    receiver = client.get_queue_receiver(sys.argv[2])
    print(*receiver.receive_messages(max_wait_time=10), flush=True)
    time.sleep(60)
"""


def test_a_client_that_hangs_keeps_its_locks_until_they_lapse() -> None:
    """Its connection lives on: what it then settles is lost, and it may receive again.

    Req: L-13, L-08, L-11
    """
    lock = dt.timedelta(minutes=1)
    with ServedBroker() as broker:
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=False
        ) as administration:
            administration.create_queue("q", lock_duration=lock)
        with (
            ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
            client.get_queue_receiver("q") as other,
            OwnClient(broker.port) as hanging,
        ):
            send(client, "q", "1")
            link, (delivery,) = hanging.receive("q", 1)
            broker.advance(lock / 2)
            assert_empty(other)
            broker.advance(lock / 2)
            again = take_one(other)
            assert (str(again), again.delivery_count) == ("1", 1)
            assert hanging.settle(link, delivery) == LOCK_LOST
            send(client, "q", "2")
            link, (delivery,) = hanging.receive("q", 1)
            assert hanging.settle(link, delivery) is None


def test_a_silent_connection_is_given_up_and_its_locks_with_it(tmp_path: Path) -> None:
    """A half-open one looks the same. A connection with anything to say is kept.

    Req: L-13, L-08, R-05
    """
    command = [sys.executable, "-m", "tests.interop.impatient_broker", str(tmp_path / "data")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline().rstrip())
            assert ready is not None, (tmp_path / "log").read_text()
            _be_silent(ready[1], int(ready[2]))
        finally:
            process.terminate()
        assert process.wait(15) == 0


def _be_silent(connection_string: str, port: int) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=False
    ) as administration:
        administration.create_queue("q")
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_receiver("q") as other,
        OwnClient(port) as silent,
    ):
        send(client, "q", "1", "2")
        silent.receive("q", 1)
        kept = take_one(other)
        assert str(kept) == "2"
        again = take_one(other)  # the client sends a frame every now and then while it waits
        assert (str(again), again.delivery_count) == ("1", 1)
        silent.until(lambda: silent.peer.lost)
        assert silent.conditions == ["amqp:resource-limit-exceeded"]
        for message in (kept, again):
            other.complete_message(message)
