"""The operation that explains which rules of a topic match a message: why did it not arrive?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, Show, answer_json, from_cursor, to_cursor
from peeklock.api.messages import PAGE_BYTES_MAX, SEND_BYTES_MAX, views_found
from peeklock.api.model import SEQUENCE_NUMBER, read_message
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import PATH_PARAMETERS, Call, Operation, node_of
from peeklock.auth.rights import Right
from peeklock.broker.content.subject import MessageSubject, without_body
from peeklock.broker.vocabulary.commands import ListEntities, ListRules, LookUp, Peek
from peeklock.broker.vocabulary.descriptions import (
    Description,
    EntityKind,
    EntityStatus,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import (
    EntitiesFound,
    EntityFound,
    EntityView,
    MessagesFound,
    RulesFound,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation, MessageNotFound
from peeklock.broker.vocabulary.message import LOST_BODY
from peeklock.gateway.address import shown
from peeklock.rules.explain import explain
from peeklock.rules.subject import Subject

RULES_READ = 1_000
"""Rules of a subscription that are read at once."""

RULES_AT_ONCE = 2
"""Rules that are explained at once: parsing the longest filter takes 4 ms, a usual one 0.2. Our choice."""

_NO_TOKEN = bytes(16)
"""What newid() gives here."""

TO_MATCH: Schema = record(
    {
        "message": ref("MessageToSend"),
        "entity": {**PATH_PARAMETERS["entity"].schema, "description": "Where the message is."},
        "number": {**SEQUENCE_NUMBER, "description": "Its sequence number there."},
    },
    (),
    description="A message: `message`, which is not sent, or `entity` and `number` of one that is there.",
    examples=[{"message": {"properties": {"priority": "high"}}}],
)

MATCHED: Schema = record(
    {
        "note": {"type": "string", "description": "Why the topic takes no message at all."},
        "subscriptions": {
            "type": "array",
            "items": record(
                {
                    "name": {"type": "string", "description": "The path."},
                    "isMatched": {"type": "boolean", "description": "The subscription gets the message."},
                    "note": {"type": "string", "description": "What else becomes of it there."},
                    "rules": {
                        "type": "array",
                        "items": record(
                            {
                                "name": {"type": "string"},
                                "isMatched": {"type": "boolean"},
                                "reason": {"type": "string", "description": "Why it matches, or does not."},
                            }
                        ),
                    },
                },
                ["name", "isMatched", "rules"],
            ),
        },
        "next": {"type": "string", "description": "The cursor of the next page. Absent at the end."},
    },
    ["subscriptions"],
    description="The subscriptions of a topic, by name.",
)

NAMED = {"ToMatch": TO_MATCH, "Matched": MATCHED}


def match(call: Call) -> Answer:
    """Explain what each rule of a topic makes of a message. Raises: ArgumentInvalid, AuthorizationError."""
    exchange, given = call.exchange, call.body
    if ("message" in given) == ("entity" in given) or ("entity" in given) != ("number" in given):
        raise ArgumentInvalid("The body has not one of 'message', and 'entity' with 'number'.")

    def found(effect: EntityFound) -> Answer:
        about = effect.entity.description
        if not isinstance(about, TopicDescription):
            return exchange.refusal(InvalidOperation(f"'{about.name}' is not a topic."))
        return exchange.guarded(lambda: _with_message(call, lambda subject: _begin(call, about, subject)))

    return Ask(exchange, LookUp(call.address, exchange.reply_to), found)


def _with_message(call: Call, then: Callable[[Subject], Answer]) -> Answer:
    """Continue with the message that the body names."""
    exchange, given = call.exchange, call.body
    if "message" in given:
        message, sections = read_message(given["message"], exchange.now_ms, "message.")
        message.enqueued_at_ms = exchange.now_ms
        return then(MessageSubject(message, sections, lambda: _NO_TOKEN))
    node = node_of(given["entity"])
    exchange.require(Right.LISTEN, node.path)

    def render(effect: MessagesFound, payloads: list[bytes]) -> Answer:
        found = effect.messages[0].message if effect.messages else None
        if found is None or found.sequence_number != given["number"] or payloads[0] is LOST_BODY:
            text = f"No message of '{shown(node.address)}' has the sequence number {given['number']}."
            return exchange.refusal(MessageNotFound(text))
        return then(MessageSubject(found, without_body(payloads[0]), lambda: _NO_TOKEN))

    command = Peek(node.address, given["number"], 1, PAGE_BYTES_MAX, exchange.reply_to)
    return Show(exchange, command, views_found, render)


def _begin(call: Call, topic: Description, subject: Subject) -> Answer:
    exchange, limit, skip = call.exchange, call.given["limit"], 0
    if "cursor" in call.given:
        (skip,) = from_cursor(call.given["cursor"], int)
    answer: dict[str, Any] = {}
    if topic.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
        answer["note"] = f"The topic is {topic.status.value}: nothing can be sent to it."
    answer["subscriptions"] = []

    def render(effect: EntitiesFound) -> Answer:
        if effect.more:
            answer["next"] = to_cursor(skip + len(effect.entities))
        return _next(call, list(reversed(effect.entities)), subject, answer)

    command = ListEntities(EntityKind.SUBSCRIPTION, skip, limit, exchange.reply_to, topic.name)
    return Ask(exchange, command, render)


def _next(call: Call, left: list[EntityView], subject: Subject, answer: dict[str, Any]) -> Answer:
    """Explain the rules of the next subscription."""
    if not left:
        return answer_json(answer)
    about = left.pop().description
    assert isinstance(about, SubscriptionDescription)
    entry: dict[str, Any] = {"name": about.name, "isMatched": False, "rules": []}
    if note := _note(about):
        entry["note"] = note
    answer["subscriptions"].append(entry)
    return _rules(call, about, entry, subject, lambda: _next(call, left, subject, answer))


def _rules(
    call: Call,
    about: SubscriptionDescription,
    entry: dict[str, Any],
    subject: Subject,
    then: Callable[[], Answer],
) -> Answer:
    """Explain the rules of a subscription, which may be gone."""
    exchange, reply_to = call.exchange, call.exchange.reply_to
    left: list[RuleDescription] = []

    def read(effect: RulesFound) -> Answer:
        left.extend(reversed(effect.rules))
        more = effect.more
        return go_on(lambda: _rules(call, about, entry, subject, then) if more else then())

    def go_on(done: Callable[[], Answer]) -> Answer:
        for _ in range(min(RULES_AT_ONCE, len(left))):
            _add(entry, left.pop(), about, subject)
        if not left:
            return done()
        # Other work has its turn.
        return Ask(exchange, LookUp(call.address, reply_to), lambda effect: go_on(done))

    command = ListRules(about.name, len(entry["rules"]), RULES_READ, reply_to)
    return Ask(exchange, command, read, instead=lambda error: then())


def _add(
    entry: dict[str, Any], rule: RuleDescription, about: SubscriptionDescription, subject: Subject
) -> None:
    """Explain one rule."""
    found = explain(rule.filter, subject)
    reason = found.reason
    if found.is_error and about.dead_lettering_on_filter_errors:
        reason += " The message is dead-lettered in the subscription."
    entry["rules"].append({"name": rule.name, "isMatched": found.is_matched, "reason": reason})
    entry["isMatched"] = entry["isMatched"] or found.is_matched


def _note(about: SubscriptionDescription) -> str:
    if about.forward_to is not None:
        return f"It forwards its messages to '{about.forward_to}'."
    if about.status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
        return f"It is {about.status.value}: its messages cannot be received."
    return ""


OPERATIONS = (
    Operation(
        "matchMessage",
        "POST",
        "/entities/{entity}/match",
        "Explain which rules of a topic match a message, and why",
        Right.MANAGE,
        match,
        "Nothing is sent. The answer shows filters, so the token needs Manage on the topic, as `listRules` "
        "does on a subscription; for a message in an entity, it needs Listen there too. The rules are those "
        "of now.",
        query=(LIMIT, CURSOR),
        body=ref("ToMatch"),
        body_bytes_max=SEND_BYTES_MAX,
        answer=ref("Matched"),
        changes_nothing=True,
    ),
)
