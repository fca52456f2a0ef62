"""Requests for queues, topics and subscriptions: from HTTP to a command, from its effect to an answer.

Source: wire contract 7.1, 7.2, 7.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from peeklock.admin import atom, elements
from peeklock.admin.authorization_rules import with_keys
from peeklock.admin.elements import AUTHORIZATION_RULES, Shown
from peeklock.admin.exchange import AdminEffect, Exchange, Pending, Response
from peeklock.admin.forward_rights import authorize_forwards, foreign_forwards, require_own_forwards
from peeklock.admin.reading import Description, read_description
from peeklock.admin.typed_texts import cut
from peeklock.broker.vocabulary.commands import (
    Address,
    CreateEntity,
    DeleteEntity,
    ListEntities,
    LookUp,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.descriptions import (
    EntityKind,
    SubscriptionDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.effects import EntitiesFound, EntityFound, EntityView, Failed
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityNotFound, PreconditionFailed

_RULES = AUTHORIZATION_RULES.element

_Read: TypeAlias = Callable[[Description, EntityDescription | None], EntityDescription]
"""Reads a description, given the existing one."""


class EntityRequests:
    """Requests for one path that names an entity."""

    def __init__(self, exchange: Exchange, path: str, readable: dict[str, _Read]) -> None:
        self._exchange = exchange
        self._path = path
        self._readable = readable

    def get(self) -> Response | Pending:
        """Look an entity up."""
        return Pending(LookUp(Address(self._path), self._exchange.reply_to), self._looked_up)

    def put(self) -> Response | Pending:
        """Create or update an entity. Raises: ArgumentInvalid, AuthorizationError."""
        given = read_description(self._exchange.request.body)
        if given.kind not in self._readable:
            known = " or ".join(self._readable)
            raise ArgumentInvalid(f"The content is a {cut(given.kind)!r}, not a {known}.")
        if not self._exchange.updates:
            return self._create(given)
        kept = elements.KEPT[given.kind]
        # Rules may come without their keys, and a foreign address may be the existing one.
        complete = all(given.has(element) for element in kept) and not given.has_children(_RULES)
        if complete and not list(foreign_forwards(self._exchange, self._readable[given.kind](given, None))):
            return self._update(given, None)
        return self._look_up_and_update(given)

    def delete(self) -> Response | Pending:
        """Delete an entity."""
        return Pending(
            DeleteEntity(self._path, self._exchange.reply_to, self._exchange.if_match), self._exchange.deleted
        )

    def _looked_up(self, effect: AdminEffect) -> Response:
        """Answer a GET."""
        absent = isinstance(effect, Failed) and type(effect.error) is EntityNotFound
        if absent and "SubscriptionDescription" not in self._readable:  # Java reads only an entry there
            return self._exchange.nothing_here()
        return self._answer(200, effect, after_put=False)

    def _create(self, given: Description) -> Pending:
        description = self._read(given, None)
        rule = elements.read_first_rule(given) if given.kind == "SubscriptionDescription" else None
        return Pending(
            CreateEntity(description, self._exchange.reply_to, rule), lambda effect: self._answer(201, effect)
        )

    def _look_up_and_update(self, given: Description) -> Pending:
        def found(effect: AdminEffect) -> Response | Pending:
            if isinstance(effect, Failed):
                return self._exchange.refusal(effect.error)
            assert isinstance(effect, EntityFound)
            view = effect.entity
            return self._exchange.guarded(lambda: self._update(given, view))

        return Pending(LookUp(Address(self._path), self._exchange.reply_to), found)

    def _update(self, given: Description, existing: EntityView | None) -> Pending:
        """Update an entity; `existing` completes what was left out."""
        wanted = self._exchange.if_match
        description = self._read(given, None if existing is None else existing.description)

        def updated(effect: AdminEffect) -> Response | Pending:
            if isinstance(effect, Failed) and type(effect.error) is PreconditionFailed and wanted is None:
                return self._look_up_and_update(given)  # it has changed since
            return self._answer(200, effect)

        if_match = (existing.version,) if wanted is None and existing is not None else wanted
        return Pending(UpdateEntity(description, self._exchange.reply_to, if_match), updated)

    def _read(self, given: Description, existing: EntityDescription | None) -> EntityDescription:
        """Read and complete a description. Raises: ArgumentInvalid, AuthorizationError."""
        description = self._readable[given.kind](given, existing)
        require_own_forwards(self._exchange, description, existing)
        authorize_forwards(self._exchange, description)
        if isinstance(description, SubscriptionDescription):
            if given.has_children(_RULES):
                raise ArgumentInvalid(f"A subscription has no {_RULES}; those of its topic apply.")
            return description
        known = () if existing is None else existing.authorization_rules
        rules = with_keys(description.authorization_rules, known, self._exchange.admin_context.keys)
        return replace(description, authorization_rules=rules)

    def _answer(self, status: int, effect: AdminEffect, *, after_put: bool = True) -> Response:
        if isinstance(effect, Failed):
            return self._exchange.refusal(effect.error)
        assert isinstance(effect, EntityFound)
        view = effect.entity
        return self._exchange.entry(status, _entry(self._exchange, view, after_put=after_put), view.version)


def of_queue_or_topic(exchange: Exchange, name: str) -> EntityRequests:
    """Serve a path that names a queue or a topic; the content says which one to create."""
    size_kb = exchange.admin_context.limits.message_size_kb_default
    return EntityRequests(
        exchange,
        name,
        {
            "QueueDescription": lambda given, existing: elements.read_queue(given, name, size_kb, existing),
            "TopicDescription": lambda given, existing: elements.read_topic(given, name, size_kb, existing),
        },
    )


def of_subscription(exchange: Exchange, topic: str, name: str) -> EntityRequests:
    """Serve a path that names a subscription."""

    def read(given: Description, existing: EntityDescription | None) -> EntityDescription:
        return elements.read_subscription(given, topic, name, existing)

    return EntityRequests(exchange, subscription_path(topic, name), {"SubscriptionDescription": read})


def list_entities(exchange: Exchange, kind: EntityKind, topic: str | None = None) -> Pending:
    """Answer with a page of all queues or topics, or of a topic's subscriptions.

    Raises: ArgumentInvalid, ArgumentOutOfRange.
    """
    page = exchange.asked_page()
    title = f"{kind.value.capitalize()}s"
    where = f"$Resources/{title.lower()}" if topic is None else f"{topic}/{title}"

    def listed(effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            return exchange.refusal(effect.error)
        assert isinstance(effect, EntitiesFound)
        entries = (_entry(exchange, view) for view in effect.entities)
        return exchange.page(title, where, page, entries, effect.more)

    return Pending(ListEntities(kind, *page, exchange.reply_to, topic), listed)


def _entry(exchange: Exchange, view: EntityView, *, after_put: bool = False) -> atom.Entry:
    about = view.description
    shown = Shown(view, exchange.host, exchange.admin_context.limits.message_size_kb_default, after_put)
    return atom.Entry(
        title=about.subscription_name if isinstance(about, SubscriptionDescription) else about.name,
        href=exchange.href(about.name),
        published_ms=view.created_at_ms,
        updated_ms=view.updated_at_ms,
        content=elements.write_description(shown),
    )
