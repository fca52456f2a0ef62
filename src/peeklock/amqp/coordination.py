"""Requests of a transaction controller to a coordinator: `declare` and `discharge`, as bodies of messages.

The coordinator answers with the outcome of the delivery: `performatives.Declared`, accepted or rejected.
Source: OASIS AMQP 1.0 sections 4.2, 4.3, 4.5.2 and 4.5.3; wire contract 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .codec import DecodeError
from .composites import DECLARE, DISCHARGE, checked_fields, composite, described_list
from .errors import RemoteProtocolError
from .messaging import VALUE, scan
from .performatives import transaction_id


@dataclass(slots=True, frozen=True)
class Declare:
    """Begin a transaction (AMQP 4.5.2). `global_id` names one that spans several resources."""

    global_id: Any = None


@dataclass(slots=True, frozen=True)
class Discharge:
    """Commit a transaction, or with `fail` roll it back (AMQP 4.5.3)."""

    txn_id: bytes
    fail: bool = False


def encode_coordination(request: Declare | Discharge) -> bytes:
    """Encode the message with this request."""
    section = bytes((0x00, 0x53, VALUE))
    if isinstance(request, Declare):
        return section + composite(DECLARE, [request.global_id])
    return section + composite(DISCHARGE, [request.txn_id, request.fail])


def decode_coordination(payload: bytes) -> Declare | Discharge:
    """Decode the request in a message. An omitted or null `fail` is false.

    Raises:
        DecodeError: not a message, or another body.
    """
    body = scan(payload).decode_body()
    if not body or body[0][0] != "value":
        raise DecodeError("the body is not an amqp-value")
    try:
        code, fields = described_list(body[0][1], "declare or discharge")
        if code == DECLARE:
            return Declare(*checked_fields(DECLARE, fields))
        if code == DISCHARGE:
            txn_id, fail = checked_fields(DISCHARGE, fields)
            return Discharge(transaction_id(txn_id), bool(fail))
    except RemoteProtocolError as error:
        # Only this message is wrong: its link lives on.
        raise DecodeError(error.error.description) from None
    raise DecodeError(f"0x{code:x} is neither declare nor discharge")
