"""An orderly stop beside clients at work: what is applied is answered, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkFlow,
)
from peeklock.amqp.performatives import ACCEPTED, Accepted, Source, Target
from peeklock.amqp.types import Role
from peeklock.demo.broker import BrokerProcess
from tests.gateway.live import message
from tests.server.test_process import Client, create_queue, health

COUNT = 100


class Worker(Client):
    """Sends, receives and completes, and reads on to the end of the stream."""

    def __init__(self, port: int) -> None:
        super().__init__(port, user=True)
        self.until(ConnectionOpened)
        self.channel = self.amqp.begin()

    def attach(self, role: Role, credit: int = 0) -> int:
        handle = self.amqp.attach(
            self.channel, role.name, role, Source("orders"), Target("orders"), rcv_settle_mode=1
        )
        self.until(LinkAttached)
        if credit:
            self.amqp.flow(self.channel, handle, credit)
        else:
            self.until(LinkFlow)
        return handle

    def send(self) -> None:
        handle = self.attach(Role.SENDER)
        for number in range(COUNT):
            self.amqp.send(self.channel, handle, b"%d" % number, message(str(number)))
        self.answered(COUNT)

    def receive(self, count: int) -> dict[int, bytes]:
        """Receive so many, by delivery-id."""
        self.attach(Role.RECEIVER, COUNT)
        got = (self.until(DeliveryReceived) for _ in range(count))
        return {delivery.delivery_id: delivery.delivery_tag for delivery in got}

    def answered(self, count: int) -> None:
        while count:
            event = self.until(DispositionReceived)
            count -= event.last - event.first + 1

    def settled_to_the_end(self) -> set[int]:
        """Read until the broker has ended the stream; return the deliveries that it says are settled."""
        settled: set[int] = set()
        while True:
            data = self.socket.recv(65536)
            events = self.amqp.receive(data, 0) if data else self.amqp.eof(0)
            for event in events:
                if isinstance(event, DispositionReceived):
                    assert event.settled
                    assert isinstance(event.state, Accepted)
                    settled.update(range(event.first, event.last + 1))
                elif isinstance(event, ConnectionClosed):
                    assert event.error is not None
                    assert event.error.condition == "amqp:connection:forced"
                    self.socket.close()
                    return settled


@pytest.mark.parametrize("delay_us", [0, 500, 2_000])
def test_completes_in_flight_at_a_stop_are_applied_and_answered_or_neither(
    tmp_path: Path, delay_us: int
) -> None:
    """Req: C46, T-01. 100 completes, each a frame of its own, and SIGTERM behind them."""
    with BrokerProcess(tmp_path) as broker:
        create_queue(broker, "orders")
        client = Worker(broker.amqp_port)
        client.send()
        client.receive(COUNT)
        for number in range(COUNT):
            client.amqp.disposition(client.channel, Role.RECEIVER, number, number, ACCEPTED, settled=False)
            client.socket.sendall(client.amqp.data_to_send())
        assert broker.pid is not None
        time.sleep(delay_us / 1e6)  # real time: the signal is to meet the commit at different points
        os.kill(broker.pid, signal.SIGTERM)
        answered = client.settled_to_the_end()
        assert broker.stop() == 0
    with BrokerProcess(tmp_path) as broker:
        assert health(broker)["active_messages"] == COUNT - len(answered)
        assert broker.stop() == 0
