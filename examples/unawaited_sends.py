"""What not to do: sends that are not awaited, beside the same sends with a bound.

    python examples/unawaited_sends.py

A program has 500 messages of 20 KB to send; every hundredth is larger than the queue allows. Without
awaiting, it is done at once, or so it seems: all messages are in its memory, none of the refusals reaches it,
and when it ends, messages that were not sent yet are lost silently. With ten sends in flight, each awaited,
it holds ten messages at a time, and knows the outcome of each.
"""

from __future__ import annotations

import asyncio
import tracemalloc

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError
from common import administration, connection_string, known, own_queues

COUNT = 500
IN_FLIGHT_MAX = 10
ANSWERED = 50
"""The careless program goes on, after it believes to have sent everything, while so many are answered."""


def message(number: int) -> ServiceBusMessage:
    """Make a message; every hundredth is too large for a queue of the standard tier."""
    return ServiceBusMessage(bytes(300_000 if number % 100 == 5 else 20_000), message_id=f"message-{number}")


def measured_mb(since_bytes: int) -> float:
    """Return the peak of memory held since then, in MB."""
    return (tracemalloc.get_traced_memory()[1] - since_bytes) / 1e6


async def send_unawaited(broker: str, queue: str) -> float:
    """DON'T. Start every send and await none; return the megabytes that the sends held."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    async with (
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_queue_sender(queue) as sender,
    ):
        one_at_a_time = asyncio.Lock()  # a sender is not to be shared by tasks

        async def send(number: int, made: ServiceBusMessage) -> None:
            async with one_at_a_time:
                await sender.send_messages(made)

        # The references are kept, or tasks may vanish before they ran: asyncio.create_task says so.
        tasks = [asyncio.create_task(send(number, message(number))) for number in range(COUNT)]
        print(f"unawaited: all {COUNT} sent, or so it seems")
        await asyncio.wait(tasks[:ANSWERED])  # in the place of whatever else the program does meanwhile
        refused = [task.exception() for task in tasks if task.done() and task.exception()]
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()  # what asyncio.run does when the program ends
    print(f"unawaited: the program ends, and {len(unfinished)} sends end with it")
    print(f"unawaited: {len(refused)} refused, which nobody was told")
    assert refused, "message-5 is too large, and was sent early"
    return measured_mb(before)


async def send_bounded(broker: str, queue: str) -> tuple[float, list[str]]:
    """Keep ten sends in flight; return the megabytes they held, and the ids of refused messages."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    refused: list[str] = []
    numbers = iter(range(COUNT))
    async with ServiceBusClient.from_connection_string(broker) as client:

        async def send_some() -> None:
            async with client.get_queue_sender(queue) as sender:
                for number in numbers:  # shared: each number is taken once
                    made = message(number)
                    try:
                        await sender.send_messages(made)
                    except MessageSizeExceededError:
                        refused.append(str(made.message_id))

        await asyncio.gather(*(send_some() for _ in range(IN_FLIGHT_MAX)))
    print(f"bounded: {COUNT - len(refused)} sent, {len(refused)} refused: {', '.join(sorted(refused))}")
    return measured_mb(before), refused


def main() -> None:
    """Send both ways, and compare what the broker has with what the program believes."""
    broker = connection_string()
    with own_queues(broker, unawaited={}, bounded={}) as queues, administration(broker) as client:
        tracemalloc.start()
        unawaited_mb = asyncio.run(send_unawaited(broker, queues[0]))
        bounded_mb, refused = asyncio.run(send_bounded(broker, queues[1]))
        counts = [client.get_queue_runtime_properties(queue).active_message_count for queue in queues]
        stored = [known(count) for count in counts]
    print(f"unawaited: {stored[0]} of {COUNT} messages stored, {unawaited_mb:.1f} MB held")
    print(f"bounded: {stored[1]} of {COUNT} messages stored, {bounded_mb:.1f} MB held")
    assert stored[0] < stored[1], "what was not sent when the program ended is lost"
    assert stored[1] == COUNT - len(refused), "each message that was not refused is stored"
    assert unawaited_mb > 3 * bounded_mb, "the bound saves memory"


if __name__ == "__main__":
    main()
