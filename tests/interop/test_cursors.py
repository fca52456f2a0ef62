"""Claims with a broker that is killed, beside official clients that do not know them.

No official client has a call for it, so our own client sends the requests.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessageState

from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Int, Long
from peeklock.demo.broker import BrokerProcess
from peeklock.store.check import SOUND, check
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import bodies, send, take
from tests.interop.own_client import OwnClient
from tests.kill.loop import broker_on

CLAIM, READ, COMMIT, RELEASE = (f"peeklock:cursor-{name}" for name in ("claim", "read", "commit", "release"))
LIMITS = {"cursor": "lake", "max-messages": Int(3), "max-bytes": Long(1 << 30)}


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """This test's own broker, with the queue `q`."""
    with broker_on(tmp_path, queues={"q": {}}) as process:
        yield process


@pytest.fixture
def patient(api: Api, mortal: BrokerProcess, background: Background) -> Iterator[Links]:
    """A client with its usual number of retries, and short pauses between them."""
    with api.client(mortal.connection_string, retry_backoff_factor=0.05) as client:
        yield Links(client, background)
        background.join()


def read(own: OwnClient, no: int) -> list[str]:
    """Return the bodies of a claim's messages."""
    status, _, found = own.ask("q", READ, {**LIMITS, "claim": Long(no), "skip": Int(0)})
    assert status == 200
    return [scan(each["message"]).decode_body()[0][1].decode() for each in found["messages"]]


def health(broker: BrokerProcess) -> tuple[int, int]:
    """Return how many cursors there are and how many messages they hold, as the broker shows it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/health") as answer:
        shown = json.load(answer)
    return shown["cursors"], shown["claimed_messages"]


def test_claims_last_over_a_kill_and_hide_from_receivers(
    patient: Links, mortal: BrokerProcess, tmp_path: Path
) -> None:
    """An official client sees a claimed message as an active one when it peeks, and is given none.

    Req: X-06
    """
    send(patient, "q", *map(str, range(8)))
    with OwnClient(mortal.amqp_port) as own:
        for no in (1, 2):
            assert own.ask("q", CLAIM, LIMITS)[2]["claim"] == no
        assert own.ask("q", COMMIT, {"cursor": "lake", "claim": Long(1)})[2] == {"left": 0}
        assert health(mortal) == (1, 3)
    with patient.get_queue_receiver("q") as receiver:
        receiver.opened()  # before the broker stops: a client that opens meanwhile gives up
        mortal.kill()
        mortal.start()
        with OwnClient(mortal.amqp_port) as own:
            assert own.ask("q", READ, {**LIMITS, "claim": Long(1), "skip": Int(0)})[0] == 410
            assert read(own, 2) == ["3", "4", "5"]
            browsed = receiver.peek_messages(max_message_count=20, sequence_number=1)
            assert bodies(browsed) == ["3", "4", "5", "6", "7"]
            assert {message.state for message in browsed} == {ServiceBusMessageState.ACTIVE}
            for message in take(receiver, 2):
                receiver.complete_message(message)
            assert own.ask("q", RELEASE, {"cursor": "lake"})[2] == {"left": 0}
            released = take(receiver, 3)
            assert bodies(released) == ["3", "4", "5"]
            assert [message.delivery_count for message in released] == [0, 0, 0]
            for message in released:
                receiver.complete_message(message)
        assert health(mortal) == (0, 0)
    mortal.kill()
    assert check(tmp_path / "data").exit_status == SOUND
