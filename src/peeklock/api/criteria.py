"""What messages must be, as JSON: the criteria of searches and jobs, read and checked.

A regular expression is not compiled here: the worker does, which may take as long as it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from peeklock.api.instants import read_instant
from peeklock.api.model import INSTANT, SEQUENCE_NUMBER, STATES
from peeklock.api.schema import Schema, record
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.jobs.groups import grouping
from peeklock.search import Criteria, Search, SearchError

TEXT_LENGTH_MAX: Final = 4096
"""Characters of a text, a path or an expression. Our choice."""

FILTER_LENGTH_MAX: Final = 1024
"""Source: Learn "Service Bus quotas": of the expression of a SQL filter."""

_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": TEXT_LENGTH_MAX}

MEMBERS: Final[Mapping[str, Schema]] = {
    "session": {"type": "string", "maxLength": 128, "description": "Only messages of this session."},
    "from": {**SEQUENCE_NUMBER, "description": "The lowest sequence number."},
    "to": {**SEQUENCE_NUMBER, "description": "The highest sequence number."},
    "since": {**INSTANT, "description": "The earliest enqueued time."},
    "until": {**INSTANT, "description": "The enqueued time is before this."},
    "states": {
        "type": "array",
        "minItems": 1,
        "maxItems": len(STATES),
        "items": {"type": "string", "enum": list(STATES.values())},
        "description": "Only messages in these states. Default: all.",
    },
    "deadLetterReason": {"type": "string", "maxLength": TEXT_LENGTH_MAX},
    "filter": {
        "type": "string",
        "minLength": 1,
        "maxLength": FILTER_LENGTH_MAX,
        "description": "A SQL filter as in a subscription rule. A message that it cannot evaluate does not "
        "match.",
    },
    "text": {**_TEXT, "description": "Part of the body."},
    "regex": {**_TEXT, "description": "A regular expression of Python, found in the body."},
    "ignoreCase": {"type": "boolean", "description": "Of `text` and `regex`."},
    "jsonPath": {
        **_TEXT,
        "description": "A path into a body that is JSON, with an optional comparison: `$.order.total > 100`.",
    },
}
"""Members of an object with criteria. All that are given must be true of a message."""

BY: Schema = record(
    {
        "reason": {"type": "boolean", "enum": [True], "description": "By dead-letter reason."},
        "property": {"type": "string", "minLength": 1, "maxLength": 1024},
        "jsonPath": {"type": "string", "minLength": 1, "maxLength": 1024},
    },
    (),
    minProperties=1,
    maxProperties=1,
    description="What groups messages: one of these members.",
)

_FIELDS: Final = {
    "session": "session_id",
    "from": "from_number",
    "to": "to_number",
    "since": "since_ms",
    "until": "until_ms",
    "deadLetterReason": "dead_letter_reason",
    "filter": "filter",
    "text": "text",
    "regex": "regex",
    "ignoreCase": "ignore_case",
    "jsonPath": "json_path",
}
"""Member -> field of `Criteria`."""


def read_criteria(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return criteria, as the schema allows them, for the worker: fields of `Criteria` in types of JSON.

    `where` precedes the names of members in a refusal. Raises: ArgumentInvalid.
    """
    found = {field: given[member] for member, field in _FIELDS.items() if member in given}
    for member in ("since", "until"):
        if member in given:
            at_ms = read_instant(given[member], f"The member '{where}{member}'")
            found[_FIELDS[member]] = at_ms
    try:
        Search.compile(replace(Criteria(**found), regex=None))
    except SearchError as failure:
        names = {field: member for member, field in _FIELDS.items()}
        name = names.get(failure.criterion, failure.criterion)
        place = "" if failure.position is None else f", at position {failure.position + 1}"
        raise ArgumentInvalid(f"The member '{where}{name}': {failure.what}{place}.") from None
    return found


def read_by(given: Mapping[str, Any], where: str) -> str:
    """Return what groups messages as `jobs.groups` reads it. Raises: ArgumentInvalid."""
    if len(given) != 1:
        raise ArgumentInvalid(f"The member '{where}' has {len(given)} members, not one.")
    by = "reason" if "reason" in given else ""
    if "property" in given:
        by = f"property:{given['property']}"
    elif "jsonPath" in given:
        by = f"json:{given['jsonPath']}"
    try:
        grouping(by)
    except SearchError as failure:
        raise ArgumentInvalid(f"The member '{where}': {failure.what}.") from None
    return by
