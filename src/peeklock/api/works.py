"""Operations whose work a child process does, and streams: search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from peeklock.api.criteria import BY, MEMBERS, read_by, read_criteria
from peeklock.api.exchange import EVENTS, LINES, Answer, ApiExchange, Ask, Work
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation, entity_of
from peeklock.auth.rights import Grant, Right
from peeklock.broker.vocabulary.commands import Address, ListEntities, LookUp, SubQueue
from peeklock.broker.vocabulary.descriptions import EntityKind, TopicDescription
from peeklock.broker.vocabulary.effects import EntitiesFound, EntityFound, EntityView
from peeklock.broker.vocabulary.errors import InvalidOperation
from peeklock.gateway.address import Node, shown

ENTITY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 400,
    "description": "A queue or subscription, or a dead-letter queue of one: `orders`, "
    "`events/subscriptions/audit`, `orders/$deadletterqueue`.",
}
BODY_BYTES_MAX: Schema = {
    "type": "integer",
    "minimum": 0,
    "description": "A longer body is cut: `bodyTruncated` is true then. `bodySizeBytes` is its size. "
    "Default: none is cut.",
}

SEARCH: Schema = record(
    {
        "entity": {**ENTITY, "description": f"{ENTITY['description']} Default: all, which needs Manage."},
        **MEMBERS,
        "limit": {"type": "integer", "minimum": 1, "description": "Stop after so many. Default: all."},
        "bodyBytesMax": BODY_BYTES_MAX,
    },
    (),
    description="What to search for. All criteria that are given must be true of a message.",
    examples=[{"entity": "orders", "filter": "sys.Label = 'pizza'", "jsonPath": "$.total > 100"}],
)

GROUPING: Schema = record(
    {"entity": ENTITY, "by": BY, **MEMBERS},
    ["by", "entity"],
    description="Which messages to group, and by what.",
    examples=[{"entity": "orders/$deadletterqueue", "by": {"reason": True}}],
)

NAMED: Final = {"Search": SEARCH, "Grouping": GROUPING}

ENTITIES_AT_ONCE: Final = 500
"""Entities that one command lists. Our choice: some 5 ms."""

_KINDS: Final = tuple(EntityKind)

STREAM = (
    "The answer is a stream of server-sent events, each with a JSON object as its data, or, with `Accept: "
    "application/x-ndjson`, JSON Lines. It begins once a process has started that does the work with the "
    "rights of this request; the process ends when the client leaves. An event `problem` says why the work "
    "has failed, also when the key of the request is removed meanwhile. "
)


def search(call: Call) -> Answer:
    """Search one entity, or all."""
    given, exchange = call.body, call.exchange
    work = {
        "work": "search",
        "criteria": read_criteria(given),
        **{name: given[name] for name in ("states", "limit", "bodyBytesMax") if name in given},
    }
    if call.node is None:
        return _in_all(exchange, work, exchange.grant(Right.MANAGE, ""))
    return in_entity(call, work)


def _in_all(exchange: ApiExchange, work: Mapping[str, Any], grant: Grant) -> Answer:
    """Look which entities have messages, then do a work in all of them."""
    entities: list[str] = []
    total = 0

    def listed(kind: int, skip: int) -> Ask:
        def render(effect: EntitiesFound) -> Answer:
            nonlocal total
            for address, count in (each for view in effect.entities for each in _with_messages(view)):
                entities.append(shown(address))
                total += count
            if effect.more:
                return listed(kind, skip + len(effect.entities))
            if kind + 1 < len(_KINDS):
                return listed(kind + 1, 0)
            return streamed(exchange, {**work, "entities": entities, "of": total}, (grant,))

        return Ask(exchange, ListEntities(_KINDS[kind], skip, ENTITIES_AT_ONCE, exchange.reply_to), render)

    return listed(0, 0)


def _with_messages(view: EntityView) -> Iterator[tuple[Address, int]]:
    """Yield the queues of an entity that have messages, and how many."""
    for sub_queue in SubQueue:
        address = Address(view.description.name, sub_queue)
        is_topic = isinstance(view.description, TopicDescription) and sub_queue is SubQueue.MAIN
        if (count := count_of(view, address)) and not is_topic:
            yield address, count


def group(call: Call) -> Answer:
    """Count the messages of an entity by group."""
    given = call.body
    states = {"states": given["states"]} if "states" in given else {}
    by = read_by(given["by"], "by")
    return in_entity(call, {"work": "group", "criteria": read_criteria(given), "by": by, **states})


def in_entity(call: Call, work: Mapping[str, Any]) -> Answer:
    """Look at the entity of a work, then do it there."""
    node, exchange = call.node, call.exchange
    assert node is not None
    grant = exchange.grant(Right.LISTEN, node.path)

    def render(effect: EntityFound) -> Answer:
        refusal = exchange.guarded(lambda: require_messages(effect.entity, node))
        if refusal is not None:
            return refusal
        entities = {"entities": [shown(node.address)], "of": count_of(effect.entity, node.address)}
        return streamed(exchange, {**work, **entities}, (grant,))

    return Ask(exchange, LookUp(node.address, exchange.reply_to), render)


def streamed(exchange: ApiExchange, work: Mapping[str, Any], grants: tuple[Grant, ...]) -> Work:
    """Return the answer that streams what a work finds, as the client accepts it."""
    is_lines = LINES in exchange.request.headers.get("accept", "")
    form = ("lines", LINES) if is_lines else ("events", EVENTS)
    return Work(exchange.slim(), grants, grants[0].identity, {**work, "form": form[0]}, form[1])


def require_messages(entity: EntityView, node: Node) -> None:
    """Raise InvalidOperation if an entity holds no messages itself."""
    if isinstance(entity.description, TopicDescription) and node.address.sub_queue is SubQueue.MAIN:
        raise InvalidOperation(
            f"'{entity.description.name}' is a topic, which holds no messages: name a subscription, such as "
            f"{entity.description.name}/subscriptions/NAME."
        )


def count_of(entity: EntityView, address: Address) -> int:
    """Return how many messages an entity, or a dead-letter queue of it, has."""
    match address.sub_queue:
        case SubQueue.DEAD_LETTER:
            return entity.dead_letter_count
        case SubQueue.TRANSFER_DEAD_LETTER:
            return entity.transfer_dead_letter_count
    return entity.active_count + entity.scheduled_count


OPERATIONS = (
    Operation(
        "search",
        "POST",
        "/search",
        "Search the messages of an entity, or of all, as a stream",
        Right.LISTEN,
        search,
        f"{STREAM}Events: `found`, a `Message` with its `entity`; `progress`, with `examined`, `of` where "
        "known, and `perSecond`; `end`, with `examined`, `found`, and `why`: `all` or `limit`. Lines are "
        "messages, which `peeklock send` takes.",
        body=ref("Search"),
        finds_entity=entity_of,
        streams=True,
        streams_lines=True,
        problems=(404, 409),
    ),
    Operation(
        "groupMessages",
        "POST",
        "/groups",
        "Count the messages of an entity by a value of theirs",
        Right.LISTEN,
        group,
        f"{STREAM}Events: `progress`, and `end` with `groups`, the 1,000 largest, `count`, how many groups "
        "there are, and `others`. At most the first 10,000 values that are met become groups: `others` is "
        "how many messages have none of these. A group has `value`, `count`, `oldest`, `newest`, `numbers`, "
        "the first ten, and `repeated`: how many were resubmitted before.",
        body=ref("Grouping"),
        finds_entity=entity_of,
        streams=True,
    ),
)
