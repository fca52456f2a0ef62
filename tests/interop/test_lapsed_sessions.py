"""Locks of sessions that lapse, and locks that a renewer keeps. All scenarios take one wait together."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import AutoLockRenewTimeout, MessageLockLostError, SessionLockLostError

from tests.interop.clients import Api, Links, bare
from tests.interop.helpers import bodies, send, take, take_one

LOCK_S = 5
"""The shortest lock that a queue may have."""

WAIT_S = LOCK_S + 1.5

TRIED: dict[str, Callable[[Any, Any], Any]] = {
    "complete": lambda receiver, held: receiver.complete_message(held),
    "abandon": lambda receiver, held: receiver.abandon_message(held),
    "defer": lambda receiver, held: receiver.defer_message(held),
    "dead-letter": lambda receiver, held: receiver.dead_letter_message(held),
    "renew": lambda receiver, held: receiver.session.renew_lock(),
    "get state": lambda receiver, held: receiver.session.get_state(),
    "set state": lambda receiver, held: receiver.session.set_state("x"),
    "receive": lambda receiver, held: receiver.receive_messages(max_wait_time=5),
    "fetch deferred": lambda receiver, held: receiver.receive_deferred_messages(1),
}
"""What fails once the lock has lapsed: each in its own session, since the client gives its receiver up at the
first failure."""

OWN_CLOCK = "seen by the client's own clock"
AGAIN = "received again"
RENEWED = "renewed"


@dataclass
class Scene:
    """What one form of the client holds, for longer than a lock lasts."""

    client: Any
    sessions: str
    messages: str
    receivers: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    reader: Any = None
    renewed: Any = None
    renewed_in_part: Any = None


@pytest.fixture(scope="module")
def scenes(
    clients: dict[str, Links], apis: dict[str, Api], make_queue: Callable[..., str]
) -> Iterator[dict[str, Scene]]:
    """Prepare a scenario for each form of the client, then wait once."""
    lock = dt.timedelta(seconds=LOCK_S)
    made = {
        form: Scene(
            client,
            make_queue(requires_session=True, lock_duration=lock, max_delivery_count=2),
            make_queue(lock_duration=lock),
        )
        for form, client in clients.items()
    }
    renewers = {form: api.auto_lock_renewer() for form, api in apis.items()}
    for scene in made.values():
        _open(scene)
    for form, scene in made.items():
        _begin(scene, renewers[form])
    threading.Event().wait(WAIT_S)
    yield made
    for renewer in renewers.values():
        renewer.close()
    for scene in made.values():
        for receiver in (*scene.receivers.values(), scene.reader):
            receiver.__exit__(None, None, None)


@pytest.fixture
def scene(api: Api, scenes: dict[str, Scene]) -> Scene:
    """The scenario of one form of the client."""
    return scenes[api.form]


def _open(scene: Scene) -> None:
    names = [*TRIED, OWN_CLOCK, AGAIN, RENEWED]
    with scene.client.get_queue_sender(scene.sessions) as sender:
        sender.send_messages(
            [ServiceBusMessage(str(number), session_id=name) for number in (1, 2) for name in names]
        )
    send(scene.client, scene.messages, "1", "2")
    scene.reader = scene.client.get_queue_receiver(scene.messages).__enter__()
    for name in names:
        receiver = scene.client.get_queue_receiver(scene.sessions, session_id=name)
        scene.receivers[name] = receiver.__enter__()


def _begin(scene: Scene, renewer: Any) -> None:
    kept = scene.receivers[RENEWED]
    renewer.register(kept.opened(), kept.session)
    with ThreadPoolExecutor() as pool:
        held = pool.map(take_one, scene.receivers.values())
        scene.held = dict(zip(scene.receivers, held, strict=True))
    reader = scene.reader.opened()
    scene.renewed, scene.renewed_in_part = take(scene.reader, 2)
    renewer.register(reader, scene.renewed)
    renewer.register(reader, scene.renewed_in_part, max_lock_renewal_duration=1)


def test_nothing_is_possible_in_a_session_whose_lock_has_lapsed(scene: Scene) -> None:
    """The answers are the broker's.

    Req: G-02, L-11, T-02
    """

    def attempt(name: str) -> str:
        receiver = scene.receivers[name]
        # The client checks its own clock first and sends nothing; without the time the broker must answer.
        bare(receiver.session)._locked_until_utc = None
        with pytest.raises(SessionLockLostError) as lost:
            TRIED[name](receiver, scene.held[name])
        return str(lost.value)

    with ThreadPoolExecutor() as pool:
        answers = dict(zip(TRIED, pool.map(attempt, TRIED), strict=True))
    assert [name for name, answer in answers.items() if "TrackingId:" not in answer] == []


def test_the_client_sees_a_lapse_by_its_own_clock(scene: Scene) -> None:
    """The answer to the accept has the lock's end, in UTC.

    Req: G-02
    """
    with pytest.raises(SessionLockLostError):
        scene.receivers[OWN_CLOCK].complete_message(scene.held[OWN_CLOCK])


def test_a_lapsed_session_is_there_for_others_and_what_was_delivered_is_counted(scene: Scene) -> None:
    """Once more, and its first message is dead-lettered.

    Req: G-02, L-07, L-08
    """
    dead_letters = scene.client.get_queue_receiver(scene.sessions, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    other = scene.client.get_queue_receiver(scene.sessions, session_id=AGAIN)
    with dead_letters, other:
        messages = take(other, 2)
        assert [(str(one), one.delivery_count) for one in messages] == [("1", 1), ("2", 0)]
        other.abandon_message(messages[0])
        assert (take_one(dead_letters).dead_letter_reason) == "MaxDeliveryCountExceeded"


def test_a_renewer_keeps_a_session_for_longer_than_its_lock_lasts(scene: Scene) -> None:
    """Req: L-18, G-02"""
    receiver = scene.receivers[RENEWED]
    assert receiver.session.auto_renew_error is None
    receiver.complete_message(scene.held[RENEWED])
    assert bodies(take(receiver)) == ["2"]


def test_a_renewer_keeps_a_message_as_long_as_asked(scene: Scene) -> None:
    """Another, kept for a second, has lapsed and is there again.

    Req: L-18, L-03, L-11
    """
    assert scene.renewed.auto_renew_error is None
    scene.reader.complete_message(scene.renewed)
    assert isinstance(scene.renewed_in_part.auto_renew_error, AutoLockRenewTimeout)
    with pytest.raises(MessageLockLostError):
        scene.reader.complete_message(scene.renewed_in_part)
    again = take_one(scene.reader)
    assert (str(again), again.delivery_count) == ("2", 1)


def test_lapsed_sessions_are_handed_out_as_available(scene: Scene) -> None:
    """Req: G-04, G-06"""
    options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 10}
    with scene.client.get_queue_receiver(scene.sessions, **options) as receiver:
        assert receiver.session.session_id in {*TRIED, OWN_CLOCK}
