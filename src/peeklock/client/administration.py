"""Administration: list, show, create, update and delete entities and rules of any Service Bus, over HTTPS."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from peeklock.client.connection_string import ConnectionString
from peeklock.client.entities import Entity, Kind, Value, local, read_entity, subscription_path, write_entity
from peeklock.client.requests import PAGE_MAX, AdministrationError, Reply, Requests, encoded
from peeklock.client.rules import Rule, read_rule, write_rule

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


class Administration:
    """The administration of one namespace. Its calls raise `AdministrationError` when they are refused."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.where = requests.where

    @classmethod
    def of(cls, settings: ConnectionString) -> Administration:
        """Return that of a namespace. Its calls raise OSError and ServiceBusError, too."""
        from peeklock.client.http import exchange  # Spark's workers need no HTTP

        def ask(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            sent = {**headers, "Authorization": settings.authorization(time.time_ns() // 1_000_000)}
            return exchange(settings, method, path, body, sent)

        return cls(Requests(ask, f"sb://{settings.host}"))

    # Entities

    def queues(self) -> Iterator[Entity]:
        """Yield all queues, by name."""
        return self._entities("$Resources/queues")

    def topics(self) -> Iterator[Entity]:
        """Yield all topics, by name."""
        return self._entities("$Resources/topics")

    def subscriptions(self, topic: str) -> Iterator[Entity]:
        """Yield the subscriptions of a topic, by name."""
        return self._entities(f"{encoded(topic)}/Subscriptions", topic)

    def entity(self, path: str) -> Entity | None:
        """Return what has this path; None = nothing has."""
        found = self._one(path)
        return None if found is None else self._read(path, found)

    def create(
        self, kind: Kind, path: str, settings: Mapping[str, Value], first_rule: Rule | None = None
    ) -> Entity:
        """Create an entity; what is not set gets the service's default.

        `first_rule`: what a subscription gets in place of `$Default`. Raises: ValueError: no such setting.
        """
        rule = "" if first_rule is None else write_rule(first_rule, "DefaultRuleDescription")
        reply = self._requests.put(path, write_entity(kind, settings, None, rule), updates=False)
        return self._read(path, _entries(reply.body, self.where)[0][1])

    def update(self, entity: Entity, settings: Mapping[str, Value]) -> Entity:
        """Change settings of an entity that was read; the others stay.

        Raises: ValueError: no such setting.
        """
        content = write_entity(entity.kind, settings, entity)
        reply = self._requests.put(entity.path, content, updates=True)
        return self._read(entity.path, _entries(reply.body, self.where)[0][1])

    def delete(self, path: str) -> None:
        """Delete an entity with its messages."""
        self._requests.send("DELETE", encoded(path))

    # Rules

    def rules(self, topic: str, subscription: str) -> Iterator[Rule]:
        """Yield the rules of a subscription."""
        for name, given in self._list(f"{encoded(subscription_path(topic, subscription))}/Rules"):
            yield self._read_rule(name, given)

    def rule(self, topic: str, subscription: str, name: str) -> Rule | None:
        """Return a rule; None = there is none of this name."""
        found = self._one(_rule_path(topic, subscription, name))
        return None if found is None else self._read_rule(name, found)

    def create_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        """Create a rule."""
        self._requests.put(_rule_path(topic, subscription, rule.name), write_rule(rule), updates=False)

    def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        """Replace the filter and the action of a rule."""
        self._requests.put(_rule_path(topic, subscription, rule.name), write_rule(rule), updates=True)

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Delete a rule."""
        self._requests.send("DELETE", encoded(_rule_path(topic, subscription, name)))

    # Inside

    def _entities(self, path: str, topic: str | None = None) -> Iterator[Entity]:
        for name, given in self._list(path):
            yield self._read(name if topic is None else subscription_path(topic, name), given)

    def _list(self, path: str) -> Iterator[tuple[str, Element]]:
        """Yield title and description of all entries of a list."""
        skip = 0
        while True:
            body = self._requests.send("GET", path, query=f"$skip={skip}&$top={PAGE_MAX}&").body
            found = _entries(body, self.where)
            yield from found
            skip += len(found)
            if len(found) < PAGE_MAX:
                return

    def _one(self, path: str) -> Element | None:
        try:
            found = _entries(self._requests.send("GET", encoded(path)).body, self.where)
        except AdministrationError as failure:
            if failure.status == 404:
                return None
            raise
        return found[0][1] if found else None  # a list without entries means that there is nothing

    def _read(self, path: str, given: Element) -> Entity:
        try:
            return read_entity(path, given)
        except ValueError as failure:
            raise AdministrationError(f"'{path}' of {self.where} cannot be read: {failure}") from failure

    def _read_rule(self, name: str, given: Element) -> Rule:
        try:
            return read_rule(name, given)
        except (ValueError, KeyError) as failure:
            raise AdministrationError(f"rule '{name}' of {self.where} cannot be read: {failure}") from failure


def _rule_path(topic: str, subscription: str, name: str) -> str:
    return f"{subscription_path(topic, subscription)}/Rules/{name}"


def _entries(body: bytes, where: str) -> list[tuple[str, Element]]:
    """Return title and description of an entry, or of those of a list. Raises: AdministrationError."""
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root = fromstring(body, forbid_dtd=True)
        entries = [root] if local(root) == "entry" else [each for each in root if local(each) == "entry"]
        return [
            (
                next(child.text or "" for child in each if local(child) == "title"),
                next(child[0] for child in each if local(child) == "content"),
            )
            for each in entries
        ]
    except (ParseError, DefusedXmlException, ValueError, LookupError, StopIteration) as failure:
        raise AdministrationError(f"{where} does not answer as Service Bus does: {failure}") from failure
