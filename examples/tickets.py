"""Tickets, first come, first served: the broker's sequence numbers say who came first.

    python examples/tickets.py

Three ticket windows take requests for four seats at the same time. They do not know which came first: the
broker gives each message the next sequence number as it stores it. The box office receives in that
order, so the four with the lowest numbers get the seats.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from common import connection_string, known, own_queues

WINDOWS = {"east": ["Ann", "Bob", "Cid"], "west": ["Dan", "Eve", "Fay"], "south": ["Gus", "Hal", "Ida"]}
SEATS = 4


def take_requests(broker: str, queue: str, people: list[str]) -> None:
    """Serve the people at one window."""
    with ServiceBusClient.from_connection_string(broker) as client, client.get_queue_sender(queue) as sender:
        for person in people:
            sender.send_messages(ServiceBusMessage(person))


def main() -> None:
    """Take requests at three windows, then hand out the seats."""
    seated: list[str] = []
    numbers: dict[str, int] = {}
    broker = connection_string()
    with own_queues(broker, tickets={}) as (queue,):
        with ThreadPoolExecutor() as threads:
            windows = [threads.submit(take_requests, broker, queue, people) for people in WINDOWS.values()]
        for window in windows:
            window.result()  # raises what failed there
        waiting = sum(map(len, WINDOWS.values()))
        with (
            ServiceBusClient.from_connection_string(broker) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            while len(numbers) < waiting:
                for request in receiver.receive_messages(max_message_count=waiting, max_wait_time=10):
                    numbers[str(request)] = known(request.sequence_number)
                    if len(seated) < SEATS:
                        seated.append(str(request))
                        print(f"{request}, number {request.sequence_number}: seat {len(seated)}")
                    else:
                        print(f"{request}, number {request.sequence_number}: sold out")
                    receiver.complete_message(request)

    assert sorted(numbers.values()) == list(range(1, waiting + 1)), "no number is missing, none comes twice"
    assert seated == sorted(numbers, key=lambda person: numbers[person])[:SEATS], "first come, first served"
    for people in WINDOWS.values():
        own = [numbers[person] for person in people]
        assert own == sorted(own), "no request was overtaken at its own window"


if __name__ == "__main__":
    main()
