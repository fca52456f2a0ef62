"""Three ways to send: one by one, all at once, and with a bound on what is in flight.

    python examples/three_loops.py QUEUE [--api aio|sync] [--count N] [--one-by-one N]

Each send is answered when the message is stored, so that one by one each costs a round trip: over a path of
70 ms, 100 sends take more than 7 s. Started together they take little more than one round trip. With at most
ten in flight, ten times as long, but neither the client nor the broker holds more than ten unsettled
messages, however many there are: this is the one to use.

The messages stay in the queue: use a new one. The client's senders must not be shared by threads or tasks
(see "Thread safety" in its README). So messages in flight together go through separate senders, opened
beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

IN_FLIGHT_MAX = 10


class InFlight:
    """Counts the sends that are not answered yet."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


def report(loop: str, count: int, seconds: float, in_flight: InFlight) -> None:
    """Print one line of the result."""
    print(f"{loop}: {count} sends in {seconds:.3f} s, at most {in_flight.most} in flight", flush=True)


async def send_with_aio(connection_string: str, queue_name: str, count: int, one_by_one: int) -> None:
    """The three loops with the asynchronous client."""
    async with AsyncServiceBusClient.from_connection_string(connection_string) as client:
        # Opening takes the client a good half second, and closing too: all of them at once.
        senders = [client.get_queue_sender(queue_name) for _ in range(count)]
        await asyncio.gather(*(sender.__aenter__() for sender in senders))

        async def send(sender: Any, number: int, in_flight: InFlight) -> None:
            with in_flight:
                await sender.send_messages(ServiceBusMessage(f"message {number}"))

        in_flight, started = InFlight(), time.monotonic()
        for number in range(one_by_one):
            await send(senders[0], number, in_flight)
        report("one by one", one_by_one, time.monotonic() - started, in_flight)

        in_flight, started = InFlight(), time.monotonic()
        await asyncio.gather(*(send(sender, number, in_flight) for number, sender in enumerate(senders)))
        report("together", count, time.monotonic() - started, in_flight)

        free: asyncio.Queue[Any] = asyncio.Queue()
        for sender in senders[:IN_FLIGHT_MAX]:
            free.put_nowait(sender)

        async def send_when_free(number: int) -> None:
            sender = await free.get()
            await send(sender, number, in_flight)
            free.put_nowait(sender)

        in_flight, started = InFlight(), time.monotonic()
        await asyncio.gather(*map(send_when_free, range(count)))
        report("bounded", count, time.monotonic() - started, in_flight)
        await asyncio.gather(*(sender.close() for sender in senders))


def send_with_sync(connection_string: str, queue_name: str, count: int, one_by_one: int) -> None:
    """The three loops with the synchronous client, one thread for each send in flight."""
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        ThreadPoolExecutor(count) as threads,
    ):
        senders = [client.get_queue_sender(queue_name) for _ in range(count)]
        _run_all(threads, lambda number: senders[number].__enter__(), count)

        def send(sender: Any, number: int, in_flight: InFlight) -> None:
            with in_flight:
                sender.send_messages(ServiceBusMessage(f"message {number}"))

        in_flight, started = InFlight(), time.monotonic()
        for number in range(one_by_one):
            send(senders[0], number, in_flight)
        report("one by one", one_by_one, time.monotonic() - started, in_flight)

        in_flight, started = InFlight(), time.monotonic()
        _run_all(threads, lambda number: send(senders[number], number, in_flight), count)
        report("together", count, time.monotonic() - started, in_flight)

        free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for sender in senders[:IN_FLIGHT_MAX]:
            free.put(sender)

        def send_when_free(number: int) -> None:
            sender = free.get()
            send(sender, number, in_flight)
            free.put(sender)

        in_flight, started = InFlight(), time.monotonic()
        _run_all(threads, send_when_free, count)
        report("bounded", count, time.monotonic() - started, in_flight)
        _run_all(threads, lambda number: senders[number].close(), count)


def _run_all(threads: ThreadPoolExecutor, call: Callable[[int], object], count: int) -> None:
    for running in [threads.submit(call, number) for number in range(count)]:
        running.result()


def main() -> None:
    """Run the loops that the command line asks for."""
    parser = argparse.ArgumentParser(description="Send one by one, together, and with a bound.")
    parser.add_argument("queue")
    parser.add_argument("--api", choices=("aio", "sync"), default="aio")
    parser.add_argument("--count", type=int, default=100, help="sends together and bounded")
    parser.add_argument("--one-by-one", type=int, default=10, help="sends one by one")
    options = parser.parse_args()
    connection_string = os.environ.get("SERVICEBUS_CONNECTION_STRING")
    if connection_string is None:
        parser.error("set SERVICEBUS_CONNECTION_STRING to the connection string that `peeklock serve` prints")
    if options.api == "aio":
        asyncio.run(send_with_aio(connection_string, options.queue, options.count, options.one_by_one))
    else:
        send_with_sync(connection_string, options.queue, options.count, options.one_by_one)


if __name__ == "__main__":
    main()
