"""Operations on scheduled messages: move them in time, so that tests need not wait."""

from __future__ import annotations

from peeklock.api.exchange import Answer, Ask, answer_json
from peeklock.api.model import COUNT, SEQUENCE_NUMBER
from peeklock.api.schema import Schema, record, ref
from peeklock.api.search import ENTITY_PARAMETER
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.effects import ScheduledShifted
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled

SHIFT_S_MAX = 100 * 366 * 86_400
"""A century. Our choice."""

_NUMBERS: Schema = {
    "type": "array",
    "items": SEQUENCE_NUMBER,
    "minItems": 1,
    "maxItems": 1000,
    "description": "Only these messages of `entity`, all or none. Requires `entity`.",
}

SHIFT: Schema = record(
    {
        "by": {
            "type": "number",
            "minimum": -SHIFT_S_MAX,
            "maximum": SHIFT_S_MAX,
            "description": "Seconds to add; a negative number means earlier.",
        },
        "sequenceNumbers": _NUMBERS,
    },
    ["by"],
    examples=[{"by": -3600}],
)

DELIVER: Schema = record({"sequenceNumbers": _NUMBERS}, ())

SHIFTED: Schema = record({"shifted": COUNT})

NAMED = {"Shift": SHIFT, "DeliverNow": DELIVER, "Shifted": SHIFTED}


def shift(call: Call) -> Answer:
    """Move scheduled messages in time."""
    return _shifted(call, round(call.body["by"] * 1000))


def deliver_now(call: Call) -> Answer:
    """Enqueue scheduled messages now."""
    return _shifted(call, None)


def _shifted(call: Call, by_ms: int | None) -> Answer:
    exchange, numbers = call.exchange, call.body.get("sequenceNumbers")
    if numbers is not None and call.node is None:
        raise ArgumentInvalid("The member 'sequenceNumbers' requires the parameter 'entity'.")
    address = None if call.node is None else call.node.address

    def render(effect: ScheduledShifted) -> Answer:
        return answer_json({"shifted": effect.count})

    chosen = None if numbers is None else tuple(numbers)
    return Ask(call.exchange, ShiftScheduled(exchange.reply_to, address, chosen, by_ms), render)


OPERATIONS = (
    Operation(
        "shiftScheduled",
        "POST",
        "/scheduled/shift",
        "Enqueue scheduled messages earlier or later",
        Right.SEND,
        shift,
        "All messages move in one durable step. They keep their sequence numbers, which cancel them, and get "
        "new ones when they are enqueued.",
        query=(ENTITY_PARAMETER,),
        body=ref("Shift"),
        answer=ref("Shifted"),
    ),
    Operation(
        "deliverScheduled",
        "POST",
        "/scheduled/deliver",
        "Enqueue scheduled messages now",
        Right.SEND,
        deliver_now,
        "All messages are enqueued in one durable step.",
        query=(ENTITY_PARAMETER,),
        body=ref("DeliverNow"),
        body_required=False,
        answer=ref("Shifted"),
    ),
)
