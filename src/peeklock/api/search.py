"""Messages of all entities, by what they are: find them, delete them.

Owns: the handlers. Must not know: how a filter is evaluated.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from peeklock.api.entities import CURSOR, LIMIT
from peeklock.api.exchange import Answer, Ask, Show, answer_json, cursor_unknown, from_cursor, to_cursor
from peeklock.api.messages import PAGE_BYTES_MAX
from peeklock.api.model import COUNT, message_json
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import PATH_PARAMETERS, Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import Address, SubQueue
from peeklock.broker.vocabulary.effects import Match, MatchingDeleted, MessagesMatched
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.message import LOST_BODY, MessageView
from peeklock.broker.vocabulary.search_commands import DeleteMatching, SearchCursor, SearchMessages
from peeklock.rules.compiled import compile_filter
from peeklock.rules.errors import RuleError
from peeklock.rules.filters import SqlFilter

FILTER_LENGTH_MAX = 1024
"""Source: Learn "Service Bus quotas": of the expression of a SQL filter."""

DELETE_AT_ONCE = 1000
"""Messages that one command deletes. Our choice: some 10 ms; the next one follows by itself."""

DELETED_MATCHING: Schema = record(
    {
        "deleted": COUNT,
        "locked": {**COUNT, "description": "So many match and stay, since somebody holds them."},
    }
)

NAMED = {"DeletedMatching": DELETED_MATCHING}

_FILTER: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": FILTER_LENGTH_MAX,
    "examples": ["sys.Label = 'pizza' AND priority = 'high'"],
}
_FILTER_TEXT = (
    "A SQL filter as of a rule of a subscription. One that cannot be evaluated of a message is false."
)
ENTITY_PARAMETER = Parameter(
    "entity",
    PATH_PARAMETERS["entity"].schema,
    "Only this entity; slashes need not be encoded here. Then the right on it suffices.",
)


def _where(call: Call) -> SqlFilter | None:
    """Read the filter. Raises: ArgumentInvalid."""
    if "filter" not in call.given:
        return None
    where = SqlFilter(call.given["filter"])
    try:
        compile_filter(where)
    except RuleError as failure:
        raise ArgumentInvalid(f"The parameter 'filter' is no filter: {failure}") from None
    return where


def _address(call: Call) -> Address | None:
    return None if call.node is None else call.node.address


def _after(call: Call) -> SearchCursor | None:
    """Read how far a search has come. Raises: ArgumentInvalid."""
    if "cursor" not in call.given:
        return None
    path, sub_queue, number = from_cursor(call.given["cursor"], str, int, int)
    if sub_queue not in [each.value for each in SubQueue]:
        raise cursor_unknown()
    return SearchCursor(Address(path, SubQueue(sub_queue)), number)


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
                message_json(match.view, payload, entity=match.address)
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
    """Return the first matches, at least one if there is one, that are not too large together."""
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
        "In order of the names of entities, then of sequence numbers, in any state. Each page looks at a "
        "bounded number of messages, so that it may be empty and have a `next`.",
        query=(
            Parameter("filter", _FILTER, f"{_FILTER_TEXT} All messages, unless given."),
            ENTITY_PARAMETER,
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
        "Messages that somebody holds stay; scheduled ones are cancelled. `1 = 1` matches all.",
        query=(Parameter("filter", _FILTER, _FILTER_TEXT, True), ENTITY_PARAMETER),
        answer=ref("DeletedMatching"),
    ),
)
