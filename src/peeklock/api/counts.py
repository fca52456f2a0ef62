"""The operation that shows the counts of all entities, and what has changed since."""

from __future__ import annotations

from peeklock.admin.exchange import Response
from peeklock.api.count_board import CountBoard
from peeklock.api.exchange import JSON, Answer
from peeklock.api.model import COUNT, INSTANT
from peeklock.api.problems import NotHere
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation, Parameter
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.descriptions import EntityKind, EntityStatus
from peeklock.rest.exchange import Step

_FIGURES: dict[str, Schema] = {
    "active": {**COUNT, "description": "With locked and deferred ones."},
    "scheduled": COUNT,
    "deadLetter": COUNT,
    "transferDeadLetter": COUNT,
    "sizeBytes": COUNT,
    "oldestEnqueuedTime": {**INSTANT, "description": "Of the active messages; absent if there are none."},
    "received": {**COUNT, "description": "Messages received since the broker's start. It never falls."},
    "delivered": {**COUNT, "description": "Deliveries since then."},
    "completed": {**COUNT, "description": "Messages completed since then."},
}
_PRESENT = [name for name in _FIGURES if name != "oldestEnqueuedTime"]

ENTITY_COUNTS: Schema = record(
    {
        "name": {"type": "string"},
        "kind": {"type": "string", "enum": [kind.value for kind in EntityKind]},
        "status": {"type": "string", "enum": [status.value for status in EntityStatus]},
        **_FIGURES,
    },
    ["name", "kind", "status", *_PRESENT],
    description="An entity now. One that is deleted and made again counts from 0.",
)

COUNTS: Schema = record(
    {
        "version": {"type": "string", "description": "Send it as `since` to get what changes from now on."},
        "at": {**INSTANT, "description": "When the counts were read; they may be 2 s old."},
        "isWhole": {"type": "boolean", "description": "All entities are listed, not only changed ones."},
        "totals": record(
            {"entities": COUNT, **_FIGURES},
            ["entities", *_PRESENT],
            description="Of the namespace. What came and left also counts deleted entities.",
        ),
        "removed": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of entities that were deleted since.",
        },
        "entities": {"type": "array", "items": ref("EntityCounts"), "description": "In no order."},
    },
    description="Counts of entities.",
)

NAMED = {"EntityCounts": ENTITY_COUNTS, "Counts": COUNTS}


def show_counts(call: Call) -> Answer:
    """Show the counts, read now unless they are fresh. Raises: NotHere."""
    board = call.context.counts
    if board is None:
        raise NotHere("This broker keeps no counts.")
    return _read_on(call, board)


def _read_on(call: Call, board: CountBoard) -> Answer:
    if not board.advance(call.exchange.now_ms):
        return Step(lambda: call.exchange.guarded(lambda: _read_on(call, board)))
    first, *more = board.answer(call.given.get("since"))
    return Response(200, JSON, first, more=tuple(more))


OPERATIONS = (
    Operation(
        "showCounts",
        "GET",
        "/counts",
        "Show the counts of all entities, or of those that changed",
        Right.MANAGE,
        show_counts,
        "Without `since`, and after a restart of the broker, all entities are listed. The counts are read at "
        "most once in 2 s, for all who ask.",
        query=(
            Parameter(
                "since",
                {"type": "string", "minLength": 1, "maxLength": 64},
                "`version` of an earlier answer: list only what has changed since.",
            ),
        ),
        answer=ref("Counts"),
        problems=(),
    ),
)
