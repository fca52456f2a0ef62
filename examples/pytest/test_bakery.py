"""Tests of the bakery: each has a namespace of its own, so they may run in parallel."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from bakery import order, ship  # type: ignore[import-not-found]  # it is beside this file

from peeklock.testing.program_tests import NamespaceForTests
from peeklock.testing.pytest_plugin import Clock

pytestmark = pytest.mark.servicebus(config="Config.json")


def test_an_order_is_shipped(servicebus_namespace: NamespaceForTests) -> None:
    asyncio.run(order(servicebus_namespace.connection_string, "a cake"))
    ship(servicebus_namespace.connection_string)
    [shipped] = servicebus_namespace.wait_for("shipped")
    assert (shipped["body"], shipped["subject"]) == ("a cake", "shipped")
    assert servicebus_namespace.dead_letters("orders") == []


def test_what_is_no_order_becomes_a_dead_letter(servicebus_namespace: NamespaceForTests) -> None:
    with ServiceBusClient.from_connection_string(servicebus_namespace.connection_string) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("a cake"))
    ship(servicebus_namespace.connection_string)
    [dead] = servicebus_namespace.dead_letters("orders")
    assert dead["properties"]["DeadLetterReason"] == "not an order"
    assert servicebus_namespace.sent("shipped") == []


def test_an_order_that_was_held_for_too_long_comes_again(
    servicebus_namespace: NamespaceForTests, servicebus_clock: Clock
) -> None:
    text = servicebus_namespace.connection_string
    asyncio.run(order(text, "a pie"))
    client = ServiceBusClient.from_connection_string(text)
    with client, client.get_queue_receiver("orders", max_wait_time=5) as holder:
        assert len(holder.receive_messages()) == 1
        servicebus_clock.advance(timedelta(minutes=2))
        ship(text)
    assert servicebus_namespace.wait_for("shipped")[0]["body"] == "a pie"
