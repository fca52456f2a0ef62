"""Operations that create, change and delete entities."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from peeklock.admin.forward_rights import authorize_forwards, require_own_forwards
from peeklock.api.entities import entity_json
from peeklock.api.entity_settings import SCHEMA, read_settings
from peeklock.api.exchange import Answer, ApiExchange, Ask, answer_json, done
from peeklock.api.rule_json import RULE_TO_PUT, read_rule
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    CreateEntity,
    DeleteEntity,
    LookUp,
    SubQueue,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    GIVEN_FORWARDS,
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import EntityFound, EntityView
from peeklock.broker.vocabulary.errors import ArgumentInvalid, PreconditionFailed, ServiceBusError
from peeklock.gateway.address import shown

_SUBSCRIPTION = re.compile(r"(?P<topic>.+?)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE | re.DOTALL)
"""As in the administration: a topic's name may have slashes, that of a subscription has none."""

NEW_ENTITY: Schema = record(
    {
        "kind": {
            "type": "string",
            "enum": ["queue", "topic", "subscription"],
            "description": "`queue` or `topic`; a subscription is known by its path.",
        },
        "settings": ref("Settings"),
        "rule": {
            **record(
                {"name": {"type": "string", "minLength": 1, "maxLength": 50}, **RULE_TO_PUT["properties"]},
                (),
            ),
            "description": "Of a subscription: the first rule, in place of `$Default`, which matches all.",
        },
    },
    (),
    description="An entity to create.",
    examples=[{"kind": "queue", "settings": {"lockDuration": 30}}],
)

CHANGED_ENTITY: Schema = record(
    {"settings": ref("Settings")},
    description="What to change; settings that are left out stay.",
    examples=[{"settings": {"maxDeliveryCount": 5}}],
)

NAMED = {"Settings": SCHEMA, "NewEntity": NEW_ENTITY, "ChangedEntity": CHANGED_ENTITY}

BODY_BYTES_MAX = 128 * 1024
"""Of an entity with a rule. Our choice: twice what a rule may have."""


def entity_path(call: Call) -> str:
    """Return the path of an entity itself. Raises: ArgumentInvalid: it is that of a dead-letter queue."""
    if call.address.sub_queue is not SubQueue.MAIN:
        raise ArgumentInvalid(
            f"'{shown(call.address)}' is a dead-letter queue; its settings are those of "
            f"'{call.address.path}'."
        )
    return call.address.path


def create_entity(call: Call) -> Answer:
    """Create an entity. Raises: ArgumentInvalid, AuthorizationError."""
    given, exchange = call.body, call.exchange
    description = _new(entity_path(call), given, exchange)
    require_own_forwards(exchange, description, None)
    authorize_forwards(exchange, description)
    rule = None
    if "rule" in given:
        if not isinstance(description, SubscriptionDescription):
            raise ArgumentInvalid("The member 'rule' is for a subscription alone.")
        rule = read_rule(given["rule"].get("name", DEFAULT_RULE_NAME), given["rule"], "rule.")
    return Ask(exchange, CreateEntity(description, exchange.reply_to, rule), _shown(201))


def _new(path: str, given: dict[str, Any], exchange: ApiExchange) -> Description:
    kind, settings = given.get("kind"), given.get("settings", {})
    size_kb = exchange.admin_context.limits.message_size_kb_default
    found = _SUBSCRIPTION.fullmatch(path)
    if found is not None:
        if kind not in (None, "subscription"):
            raise ArgumentInvalid(f"'{path[:300]}' is the path of a subscription, not of a {kind}.")
        fields = read_settings(settings, SubscriptionDescription, size_kb)
        return SubscriptionDescription(found["topic"], found["name"], **fields)
    if kind == "queue":
        return QueueDescription(path, **read_settings(settings, QueueDescription, size_kb))
    if kind == "topic":
        fields = read_settings(settings, TopicDescription, size_kb)
        # A topic cannot keep an order over its partitions.
        fields.setdefault("support_ordering", not fields.get("enable_partitioning", False))
        return TopicDescription(path, **fields)
    raise ArgumentInvalid(
        "The member 'kind' is not queue or topic. The path of a subscription is TOPIC%2Fsubscriptions%2FNAME."
    )


def change_entity(call: Call) -> Answer:
    """Change settings of an entity; others stay, also if another client changes them now."""
    entity_path(call)
    exchange = call.exchange

    def found(effect: EntityFound) -> Answer:
        return exchange.guarded(lambda: _change(call, effect.entity))

    return Ask(exchange, LookUp(call.address, exchange.reply_to), found)


def _change(call: Call, existing: EntityView) -> Answer:
    exchange, before = call.exchange, existing.description
    size_kb = exchange.admin_context.limits.message_size_kb_default
    fields = read_settings(call.body["settings"], type(before), size_kb)
    description = replace(before, **fields)
    require_own_forwards(exchange, description, before)
    changed = [field for field in GIVEN_FORWARDS if getattr(description, field) != getattr(before, field)]
    authorize_forwards(exchange, description, changed)

    def instead(error: ServiceBusError) -> Answer | None:
        return change_entity(call) if isinstance(error, PreconditionFailed) else None

    command = UpdateEntity(description, exchange.reply_to, (existing.version,))
    return Ask(exchange, command, _shown(200), instead=instead)


def delete_entity(call: Call) -> Answer:
    """Delete an entity."""
    return Ask(call.exchange, DeleteEntity(entity_path(call), call.exchange.reply_to), done)


def _shown(status: int) -> Any:
    return lambda effect: answer_json(entity_json(effect.entity), status)


OPERATIONS = (
    Operation(
        "createEntity",
        "PUT",
        "/entities/{entity}",
        "Create a queue, topic or subscription",
        Right.MANAGE,
        create_entity,
        "The path of a subscription is `TOPIC%2Fsubscriptions%2FNAME`. Values are checked as by the "
        "administration. The token also needs Send on what the entity forwards to.",
        body=ref("NewEntity"),
        body_bytes_max=BODY_BYTES_MAX,
        status=201,
        answer=ref("Entity"),
    ),
    Operation(
        "changeEntity",
        "PATCH",
        "/entities/{entity}",
        "Change settings of an entity",
        Right.MANAGE,
        change_entity,
        "Settings that are left out stay. Changing some of them makes receivers lose their locks.",
        body=ref("ChangedEntity"),
        answer=ref("Entity"),
    ),
    Operation(
        "deleteEntity",
        "DELETE",
        "/entities/{entity}",
        "Delete an entity with its messages, a topic also with its subscriptions",
        Right.MANAGE,
        delete_entity,
        status=204,
    ),
)
