"""Operations on entities: list them, show one with its settings and counts."""

from __future__ import annotations

from typing import Any

from peeklock.api.entity_settings import settings_json
from peeklock.api.exchange import CURSOR_LENGTH_MAX, Answer, Ask, answer_json, from_cursor, to_cursor
from peeklock.api.instants import written
from peeklock.api.model import COUNT, INSTANT, entity_href
from peeklock.api.schema import Schema, page, record, ref
from peeklock.api.table import Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import Address, ListEntities, LookUp
from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    EntityKind,
    EntityStatus,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import EntitiesFound, EntityFound, EntityView

_COUNTS = ("active", "scheduled", "deadLetter", "transferDeadLetter")
_ORDER = tuple(EntityKind)

ENTITY: Schema = record(
    {
        "name": {"type": "string"},
        "kind": {"type": "string", "enum": [kind.value for kind in EntityKind]},
        "href": {"type": "string", "format": "uri-reference"},
        "status": {"type": "string", "enum": [status.value for status in EntityStatus]},
        "createdAt": INSTANT,
        "updatedAt": INSTANT,
        "accessedAt": {**INSTANT, "description": "Absent if unused since the broker's start."},
        "sizeBytes": COUNT,
        "counts": record(
            dict.fromkeys(_COUNTS, COUNT),
            description="Numbers of messages; `active` includes locked and deferred ones.",
        ),
        "subscriptionCount": {**COUNT, "description": "Topics only."},
        "settings": ref("Settings"),
    },
    [
        "name",
        "kind",
        "href",
        "status",
        "createdAt",
        "updatedAt",
        "sizeBytes",
        "counts",
        "settings",
    ],
    description="A queue, topic or subscription.",
)

ENTITIES = page("entities", ref("Entity"))

LIMIT_MAX = 250
"""Of one page. Our choice: encoding a message takes 70 us."""

LIMIT = Parameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100},
    "Maximum number of entries in a page.",
)
CURSOR = Parameter(
    "cursor",
    {"type": "string", "minLength": 1, "maxLength": CURSOR_LENGTH_MAX},
    "`next` of the previous page.",
)


def entity_json(view: EntityView) -> dict[str, Any]:
    """Return an entity as JSON."""
    description = view.description
    instants = {
        "createdAt": view.created_at_ms,
        "updatedAt": view.updated_at_ms,
        "accessedAt": view.accessed_at_ms,
    }
    counts = (
        view.active_count,
        view.scheduled_count,
        view.dead_letter_count,
        view.transfer_dead_letter_count,
    )
    is_topic = isinstance(description, TopicDescription)
    return {
        "name": description.name,
        "kind": KINDS[type(description)].value,
        "href": entity_href(Address(description.name)),
        "status": description.status.value,
        **written(instants),
        "sizeBytes": view.size_bytes,
        "counts": dict(zip(_COUNTS, counts, strict=True)),
        **({"subscriptionCount": view.subscription_count} if is_topic else {}),
        "settings": settings_json(description),
    }


def list_entities(call: Call) -> Answer:
    """List queues, then topics, then subscriptions, each sorted by name."""
    kind, skip = 0, 0
    if "cursor" in call.given:
        kind, skip = from_cursor(call.given["cursor"], int, int)
    return _listed(call, min(kind, len(_ORDER) - 1), skip, [])


def _listed(call: Call, kind: int, skip: int, found: list[dict[str, Any]]) -> Ask:
    limit = call.given["limit"]

    def render(effect: EntitiesFound) -> Answer:
        found.extend(entity_json(view) for view in effect.entities)
        following = (kind, skip + len(effect.entities)) if effect.more else (kind + 1, 0)
        if following[0] == len(_ORDER):
            return answer_json({"entities": found})
        if len(found) < limit:
            return _listed(call, *following, found)
        return answer_json({"entities": found, "next": to_cursor(*following)})

    return Ask(
        call.exchange, ListEntities(_ORDER[kind], skip, limit - len(found), call.exchange.reply_to), render
    )


def show_entity(call: Call) -> Answer:
    """Show one entity."""

    def render(effect: EntityFound) -> Answer:
        return answer_json(entity_json(effect.entity))

    return Ask(call.exchange, LookUp(call.address, call.exchange.reply_to), render)


NAMED = {"Entity": ENTITY, "Entities": ENTITIES}

OPERATIONS = (
    Operation(
        "listEntities",
        "GET",
        "/entities",
        "List queues, then topics, then subscriptions, by name",
        Right.MANAGE,
        list_entities,
        query=(LIMIT, CURSOR),
        answer=ref("Entities"),
        problems=(),
    ),
    Operation(
        "showEntity",
        "GET",
        "/entities/{entity}",
        "Show an entity with its settings and counts",
        Right.LISTEN,
        show_entity,
        answer=ref("Entity"),
        problems=(404,),
    ),
)
