"""A broker on a small volume, at full speed, and on one that other programs have filled.

The tests mount the volumes, which requires root: where that is not allowed they fail and say so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from peeklock.demo.broker import BrokerProcess
from peeklock.store.check import SOUND, check
from tests.server.test_process import create_queue, health

MB = 1024 * 1024
SIZE = 64 * MB
BODY = os.urandom(100_000)


def do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, (
        f"{' '.join(command)}: {done.stderr.strip()}; this test mounts, which requires root"
    )


@pytest.fixture(params=["ext4", "tmpfs"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    place = tmp_path / "volume"
    place.mkdir()
    if request.param == "tmpfs":
        do("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(place))
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(SIZE)
        do("mkfs.ext4", "-q", "-m", "0", str(image))
        do("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        do("umount", str(place))


def send_until_refused(client: ServiceBusClient) -> int:
    """Send as fast as possible; return how many messages were acknowledged."""
    sent = 0
    with client.get_queue_sender("q") as sender:
        for _ in range(2 * SIZE // len(BODY)):
            try:
                sender.send_messages([ServiceBusMessage(BODY) for _ in range(2)])
            except ServiceBusError as refused:
                if "resource-limit" not in str(refused):
                    raise
                return sent
            sent += 2
    raise AssertionError("no send was refused")


def take(receiver: ServiceBusReceiver, count: int) -> int:
    taken = 0
    while taken < count:
        messages = receiver.receive_messages(min(20, count - taken), max_wait_time=5)
        if not messages:
            break
        for message in messages:
            assert b"".join(message.body) == BODY
            receiver.complete_message(message)
        taken += len(messages)
    return taken


def fill(place: Path) -> Path:
    """Fill a volume, as another program would."""
    hog = place / "hog"
    with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MB, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return hog


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)


def test_a_small_volume_fills_and_is_emptied_again(volume: Path) -> None:
    """Sends are refused in time; acknowledged messages survive a stop and a start. Req: R-06."""
    broker = BrokerProcess(volume)
    broker.start()
    create_queue(broker, "q")
    with client_of(broker) as client:
        sent = send_until_refused(client)
        assert sent * len(BODY) > SIZE // 4
        with client.get_queue_receiver("q") as receiver:
            assert take(receiver, sent // 2) == sent // 2
    assert broker.stop() == 0
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver("q") as receiver:
        assert take(receiver, sent) == sent - sent // 2
    assert broker.stop() == 0
    assert check(broker.data).exit_status == SOUND


def test_a_volume_that_others_filled_has_room_to_settle_to_stop_and_to_start(volume: Path) -> None:
    """The broker gives up its ballast for that. Req: R-06."""
    broker = BrokerProcess(volume)
    broker.start()
    create_queue(broker, "q")
    with client_of(broker) as client, client.get_queue_sender("q") as sender:
        for _ in range(50):
            sender.send_messages([ServiceBusMessage(BODY) for _ in range(2)])
    hog = fill(volume)
    with client_of(broker) as client, client.get_queue_receiver("q") as receiver:
        assert take(receiver, 30) == 30
    assert broker.stop() == 0
    for _ in range(2):
        fill(volume)
        broker.start()
        with client_of(broker) as client, client.get_queue_receiver("q") as receiver:
            assert take(receiver, 30) == 30
        assert broker.stop() == 0
    hog.unlink()
    broker.start()
    deadline = time.monotonic() + 10
    while "low space" in str(health_or_refusal(broker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    with client_of(broker) as client:
        with client.get_queue_receiver("q") as receiver:
            assert take(receiver, 30) == 10
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage(BODY))
    assert broker.stop() == 0
    assert check(broker.data).exit_status == SOUND


def health_or_refusal(broker: BrokerProcess) -> object:
    try:
        return health(broker)["status"]
    except OSError as refused:
        return f"low space: {refused}"
