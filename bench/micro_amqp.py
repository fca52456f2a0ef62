"""Measure the AMQP engine's hot paths in this process: microseconds per operation, no sockets.

Compare figures only within one run: the machine decides the scale. `--profile NAME` profiles one of them.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable

from peeklock.amqp.connection import Connection
from peeklock.amqp.frames import Limits
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.performatives import ACCEPTED, Source, Target
from peeklock.amqp.types import Role

MESSAGES = 20_000
BATCH = 100
"""Deliveries in one read or write, as on a busy connection."""

Case = Callable[[], int]
"""Run one measurement; return how many operations it made."""


def connected(role: Role, *, credit: int) -> tuple[Connection, Connection]:
    """Return a client and a server with one link on channel 0, handle 0; `role` is the client's."""
    limits = Limits(incoming_window=2 * MESSAGES)
    client = Connection("client", container_id="client", now_ms=0, limits=limits)
    server = Connection("server", container_id="server", now_ms=0)
    client.open()
    client.begin()
    client.attach(0, "link", role, Source(address="a"), Target(address="b"))
    server.receive(client.data_to_send(), 0)
    server.open()
    server.accept_link(0, 0, max_message_size=1 << 20)
    client.receive(server.data_to_send(), 0)
    receiver = server if role is Role.SENDER else client
    receiver.flow(0, 0, credit)
    (client if role is Role.SENDER else server).receive(receiver.data_to_send(), 0)
    return client, server


def receive_case(payload: bytes) -> Case:
    _, server = connected(Role.SENDER, credit=MESSAGES)
    reads: list[bytes] = []
    feeder, feeder_server = connected(Role.SENDER, credit=MESSAGES)
    for start in range(0, MESSAGES, BATCH):
        for number in range(start, start + BATCH):
            feeder.send(0, 0, number.to_bytes(4, "big"), payload)
        data = feeder.data_to_send()
        reads.append(data)
        feeder_server.receive(data, 0)
        feeder.receive(feeder_server.data_to_send(), 0)

    def run() -> int:
        count = 0
        for data in reads:
            count += len(server.receive(data, 0))
            server.data_to_send()
        return count

    return run


def send_case(payload: bytes) -> Case:
    _, server = connected(Role.RECEIVER, credit=MESSAGES)
    tags = [number.to_bytes(16, "big") for number in range(MESSAGES)]

    def run() -> int:
        for start in range(0, MESSAGES, BATCH):
            for tag in tags[start : start + BATCH]:
                server.send(0, 0, tag, payload)
            server.data_to_send()
        return MESSAGES

    return run


def disposition_in_case() -> Case:
    client, server = connected(Role.RECEIVER, credit=MESSAGES)
    for number in range(MESSAGES):
        server.send(0, 0, number.to_bytes(16, "big"), b"")
        server.data_to_send()
    reads: list[bytes] = []
    for start in range(0, MESSAGES, BATCH):
        for number in range(start, start + BATCH):
            client.disposition(0, Role.RECEIVER, number, number, ACCEPTED, settled=number % 2 == 0)
        reads.append(client.data_to_send())

    def run() -> int:
        return sum(len(server.receive(data, 0)) for data in reads)

    return run


def disposition_out_case(step: int) -> Case:
    _, server = connected(Role.SENDER, credit=MESSAGES)

    def run() -> int:
        for start in range(0, MESSAGES, BATCH):
            for number in range(start, start + BATCH):
                server.disposition(0, Role.RECEIVER, number * step, number * step, ACCEPTED)
            server.data_to_send()
        return MESSAGES

    return run


def scan_case() -> Case:
    message = encode_message(
        header=Header(ttl=60_000),
        properties=Properties(message_id="0123456789abcdef"),
        application_properties={"kind": "order"},
        data=b"x" * 1024,
    )

    def run() -> int:
        for _ in range(MESSAGES):
            scan(message)
        return MESSAGES

    return run


def large_case(size: int) -> Case:
    client, server = connected(Role.SENDER, credit=100)
    payload = bytes(size)

    def run() -> int:
        client.send(0, 0, b"tag0", payload)
        while data := client.data_to_send():
            server.receive(data, 0)
            client.receive(server.data_to_send(), 0)
        return size >> 20

    return run


def cases() -> dict[str, Callable[[], Case]]:
    """Return every measurement by name, with its preparation."""
    message = encode_message(data=b"x" * 1024)
    return {
        "receive 1 KiB transfer": lambda: receive_case(message),
        "send 1 KiB transfer": lambda: send_case(message),
        "disposition in, one delivery each": disposition_in_case,
        "disposition out, merged": lambda: disposition_out_case(1),
        "disposition out, not mergeable": lambda: disposition_out_case(2),
        "scan four sections": scan_case,
        "20 MiB message across, per MiB": lambda: large_case(20 << 20),
    }


def main() -> None:
    """Print the table, or one profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--profile", metavar="NAME", help="profile the first measurement whose name starts with this"
    )
    name = parser.parse_args().profile
    if name is not None:
        prepare = next(prepare for title, prepare in cases().items() if title.startswith(name))
        case = prepare()
        profile = cProfile.Profile()
        profile.runcall(case)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    for title, prepare in cases().items():
        best = min(_microseconds(prepare()) for _ in range(3))
        print(f"{title:36} {best:9.2f} us")


def _microseconds(case: Case) -> float:
    started = time.perf_counter()
    operations = case()
    return (time.perf_counter() - started) * 1e6 / operations


if __name__ == "__main__":
    main()
