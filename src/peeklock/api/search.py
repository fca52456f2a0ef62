"""Operations on the messages of all entities: search, delete."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, Show, answer_json, cursor_unknown, from_cursor, to_cursor
from peeklock.api.messages import BODY_BYTES_MAX, PAGE_BYTES_MAX
from peeklock.api.model import COUNT, message_json
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import PATH_PARAMETERS, Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import Address, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.effects import Match, MatchingDeleted, MessagesMatched
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.extension_commands import DeleteMatching, SearchCursor, SearchMessages
from peeklock.broker.vocabulary.message import LOST_BODY, MessageView
from peeklock.rules.compiled import compile_filter
from peeklock.rules.errors import RuleError
from peeklock.rules.filters import SqlFilter

FILTER_LENGTH_MAX = 1024
"""Source: Learn "Service Bus quotas": of the expression of a SQL filter."""

DELETE_AT_ONCE = 1000
"""Messages that one command deletes; further commands follow. Our choice: some 10 ms."""

DELETED_MATCHING: Schema = record(
    {
        "deleted": COUNT,
        "locked": {**COUNT, "description": "Matching messages that stay because they are locked."},
    }
)

NAMED = {"DeletedMatching": DELETED_MATCHING}

_FILTER: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": FILTER_LENGTH_MAX,
    "examples": ["sys.Label = 'pizza' AND priority = 'high'"],
}
_FILTER_TEXT = "A SQL filter as in a subscription rule. A message that it cannot evaluate does not match."
ENTITY_PARAMETER = Parameter(
    "entity",
    PATH_PARAMETERS["entity"].schema,
    "Only this entity; slashes need not be encoded. The right on this entity is enough.",
)


def _where(call: Call) -> SqlFilter | None:
    """Read the filter. Raises: ArgumentInvalid."""
    if "filter" not in call.given:
        return None
    where = SqlFilter(call.given["filter"])
    try:
        compile_filter(where)
    except RuleError as failure:
        raise ArgumentInvalid(f"The parameter 'filter' is not a filter: {failure}") from None
    return where


def _address(call: Call) -> Address | None:
    return None if call.node is None else call.node.address


def _after(call: Call) -> SearchCursor | None:
    """Read the position of a search. Raises: ArgumentInvalid."""
    if "cursor" not in call.given:
        return None
    path, sub_queue, number = from_cursor(call.given["cursor"], str, int, int)
    if sub_queue not in [each.value for each in SubQueue]:
        raise cursor_unknown()
    return SearchCursor(Address(path, SubQueue(sub_queue)), SequenceNumber(number))


def search(call: Call) -> Answer:
    """Show the messages that match."""
    exchange = call.exchange
    command = SearchMessages(
        exchange.reply_to, _where(call), _address(call), _after(call), call.given["limit"]
    )

    def views(effect: MessagesMatched) -> list[MessageView]:
        return [match.view for match in _page_of(effect)]

    def render(effect: MessagesMatched, payloads: list[bytes]) -> Answer:
        shown = _page_of(effect)
        page = zip(shown, payloads, strict=True)
        found: dict[str, Any] = {
            "messages": [
                message_json(
                    match.view,
                    payload,
                    entity=match.address,
                    body_bytes_max=call.given.get("bodyBytesMax"),
                )
                for match, payload in page
                if payload is not LOST_BODY
            ]
        }
        at = effect.next
        if len(shown) < len(effect.matches):
            at = SearchCursor(shown[-1].address, shown[-1].view.message.sequence_number)
        if at is not None:
            found["next"] = to_cursor(at.address.path, at.address.sub_queue.value, at.sequence_number)
        return answer_json(found)

    return Show(call.exchange, command, views, render)


def _page_of(effect: MessagesMatched) -> list[Match]:
    """Return the first matches that are not too large together, at least one if there are any."""
    sizes = accumulate(match.view.message.size_bytes for match in effect.matches)
    fitting = sum(size <= PAGE_BYTES_MAX for size in sizes)
    return list(effect.matches[: max(fitting, 1)])


def delete(call: Call) -> Answer:
    """Delete the messages that match."""
    return _deleted(call, _where(call), None, 0, 0)


def _deleted(
    call: Call, where: SqlFilter | None, after: SearchCursor | None, deleted: int, locked: int
) -> Ask:
    exchange = call.exchange

    def render(effect: MatchingDeleted) -> Answer:
        counts = (deleted + effect.deleted, locked + effect.locked)
        if effect.next is not None:
            return _deleted(call, where, effect.next, *counts)
        return answer_json(dict(zip(("deleted", "locked"), counts, strict=True)))

    return Ask(
        call.exchange, DeleteMatching(exchange.reply_to, where, _address(call), after, DELETE_AT_ONCE), render
    )


OPERATIONS = (
    Operation(
        "searchMessages",
        "GET",
        "/messages",
        "Search the messages of all entities, or of one",
        Right.LISTEN,
        search,
        "Messages in any state, sorted by entity name, then by sequence number. A request examines a bounded "
        "number of messages, so a page may be empty and have a `next`.",
        query=(
            Parameter("filter", _FILTER, f"{_FILTER_TEXT} Default: all messages."),
            ENTITY_PARAMETER,
            BODY_BYTES_MAX,
            LIMIT,
            CURSOR,
        ),
        answer=ref("Messages"),
    ),
    Operation(
        "deleteMessages",
        "DELETE",
        "/messages",
        "Delete the messages that match, of all entities or of one",
        Right.LISTEN,
        delete,
        "Locked messages stay; scheduled ones are cancelled. `1 = 1` matches all.",
        query=(Parameter("filter", _FILTER, _FILTER_TEXT, True), ENTITY_PARAMETER),
        answer=ref("DeletedMatching"),
    ),
)
