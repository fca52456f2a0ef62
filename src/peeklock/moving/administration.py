"""The administration of any broker that speaks Azure Service Bus, as a client asks it.

It reads and makes descriptions of the broker's vocabulary, by the tables of `admin`. A step that fails
changes nothing. Source: wire contract 7.1, 7.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar, assert_never

from peeklock.admin import elements
from peeklock.admin.reading import Description, read_answer
from peeklock.admin.rules import read_rule, write_rule
from peeklock.broker.vocabulary.commands import (
    NOWHERE,
    AddRule,
    CreateEntity,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.client.requests import PAGE_MAX, AdministrationError, Requests, encoded
from peeklock.config.reconcile import Step

T = TypeVar("T")


class Administration:
    """The administration of one namespace."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.where = requests.where

    # Reading

    def info(self) -> tuple[str, str]:
        """Return name and tier of the namespace, the tier in lower case. Raises: AdministrationError."""
        for _, found in self._read("$namespaceinfo"):
            if found.has("MessagingSKU"):
                return found.text("Name") if found.has("Name") else "", found.text("MessagingSKU").lower()
        raise AdministrationError(f"{self.where} does not say what tier it has: it is not Service Bus")

    def queues(self) -> Iterator[QueueDescription]:
        """Yield all queues. Raises: AdministrationError."""
        for name, found in self._list("$Resources/queues"):
            yield self._decoded(found, partial(elements.read_queue, name=name, message_size_kb_default=0))

    def topics(self) -> Iterator[TopicDescription]:
        """Yield all topics. Raises: AdministrationError."""
        for name, found in self._list("$Resources/topics"):
            yield self._decoded(found, partial(elements.read_topic, name=name, message_size_kb_default=0))

    def subscriptions(self, topic: str) -> Iterator[SubscriptionDescription]:
        """Yield the subscriptions of a topic. Raises: AdministrationError."""
        for name, found in self._list(f"{encoded(topic)}/Subscriptions"):
            yield self._decoded(found, partial(elements.read_subscription, topic=topic, name=name))

    def rules(self, topic: str, subscription: str) -> Iterator[RuleDescription]:
        """Yield the rules of a subscription. Raises: AdministrationError."""
        for name, found in self._list(f"{encoded(subscription_path(topic, subscription))}/Rules"):
            yield self._decoded(found, partial(read_rule, name=name))

    # Changing

    def carry_out(self, step: Step) -> None:
        """Carry out a step of a plan. Raises: AdministrationError."""
        command = step(NOWHERE)
        match command:
            case CreateEntity():
                content = elements.write_settings(command.description, command.rule)
                self._requests.put(command.description.name, content, updates=False)
            case UpdateEntity():
                content = elements.write_settings(command.description)
                self._requests.put(command.description.name, content, updates=True)
            case AddRule() | UpdateRule():
                path = f"{command.path}/Rules/{command.rule.name}"
                self._requests.put(path, write_rule(command.rule), updates=isinstance(command, UpdateRule))
            case RemoveRule():
                self._requests.send("DELETE", f"{encoded(command.path)}/Rules/{encoded(command.name)}")
            case _:
                assert_never(command)

    def create(self, description: EntityDescription) -> bool:
        """Create an entity unless it is there; return whether it was not. Raises: AdministrationError."""
        if self._read(encoded(description.name)):
            return False
        self._requests.put(description.name, elements.write_settings(description), updates=False)
        return True

    # Inside

    def _list(self, path: str) -> Iterator[tuple[str, Description]]:
        """Yield title and description of all entries of a list."""
        skip = 0
        while True:
            found = self._read(path, f"$skip={skip}&$top={PAGE_MAX}&")
            yield from found
            skip += len(found)
            if len(found) < PAGE_MAX:
                return

    def _read(self, path: str, query: str = "") -> list[tuple[str, Description]]:
        body = self._requests.send("GET", path, query=query).body
        try:
            return read_answer(body)
        except ArgumentInvalid as failure:
            raise AdministrationError(
                f"{self.where} does not answer as Service Bus does: {failure}"
            ) from failure

    def _decoded(self, found: Description, read: partial[T]) -> T:
        try:
            return read(found)
        except ArgumentInvalid as failure:
            name = read.keywords["name"]
            raise AdministrationError(f"'{name}' of {self.where} cannot be read: {failure}") from failure
