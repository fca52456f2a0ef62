"""The program under test: it ships orders, and gives up on those that it cannot read."""

from __future__ import annotations

import json

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient


def ship(connection_string: str, wait_s: float = 1) -> None:
    """Ship all orders that are there."""
    client = ServiceBusClient.from_connection_string(connection_string)
    with (
        client,
        client.get_queue_receiver("orders", max_wait_time=wait_s) as receiver,
        client.get_queue_sender("shipped") as sender,
    ):
        for order in receiver:
            try:
                item = json.loads(str(order))["item"]
            except (ValueError, KeyError) as failure:
                receiver.dead_letter_message(order, "not an order", str(failure))
                continue
            sender.send_messages(ServiceBusMessage(item, subject="shipped"))
            receiver.complete_message(order)


async def order(connection_string: str, item: str) -> None:
    """Place an order."""
    client = AsyncServiceBusClient.from_connection_string(connection_string)
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage(json.dumps({"item": item})))
