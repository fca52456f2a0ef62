"""Columns of a table that can be written: their names, types and places."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peeklock.spark.source.schema import row_schema

_TEXT = r"(string|varchar|char)\b.*"
_WHOLE = r"tinyint|smallint|int|bigint"

COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "body": ("binary or string", rf"binary|{_TEXT}"),
    "entity": ("string", _TEXT),
    "messageId": ("string", _TEXT),
    "sessionId": ("string", _TEXT),
    "partitionKey": ("string", _TEXT),
    "correlationId": ("string", _TEXT),
    "subject": ("string", _TEXT),
    "contentType": ("string", _TEXT),
    "to": ("string", _TEXT),
    "replyTo": ("string", _TEXT),
    "timeToLive": ("bigint (ms) or interval day to second", rf"{_WHOLE}|interval (day|hour|minute|second).*"),
    "scheduledEnqueueTime": ("timestamp", "timestamp"),
    "applicationProperties": ("map<string,string>", r"map<(string.*|void),(string.*|void)>"),
    "encoded": ("binary", "binary"),
}
"""Columns that can be written: their types in words, and as a pattern of Spark's type names."""

_SET_BY_THE_BROKER: Final = {name.lower() for name in row_schema().names if name not in COLUMNS}
"""Columns of the source that cannot be sent. They may hold nulls: SQL's INSERT fills them so."""

_ID_TYPE: Final = ("string or whole number", rf"{_TEXT}|{_WHOLE}")


class SchemaMismatch(ValueError):
    """The table has a column that cannot be written, or a column of the wrong type."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of a table's columns by the names of `COLUMNS`."""

    places: dict[str, int]
    message_id: int | None
    """Place of the column with the message ids."""
    nulls: tuple[int, ...]
    """Places of columns that must hold only nulls."""


def find_columns(fields: Sequence[tuple[str, str]], message_id_column: str | None) -> Columns:
    """Return the columns of a table.

    Args:
        fields: name and type of each, the type as in Spark's `simpleString`.
        message_id_column: the option `messageIdColumn`.

    Raises:
        SchemaMismatch: a column is unknown, of a wrong type or double, or there is no body.
    """
    known = {name.lower(): name for name in COLUMNS}
    id_name = None if message_id_column is None else message_id_column.lower()
    places: dict[str, int] = {}
    message_id: int | None = None
    nulls: list[int] = []
    seen: set[str] = set()
    for place, (name, kind) in enumerate(fields):
        key = name.lower()
        if key in seen:
            raise SchemaMismatch(f"Column '{name}' occurs twice; names are case-insensitive.")
        seen.add(key)
        if key == id_name:
            _check_type(name, kind, _ID_TYPE)
            message_id = place
        elif key in _SET_BY_THE_BROKER:
            nulls.append(place)
        elif key not in known:
            raise SchemaMismatch(_unknown_column(name))
        if key in known:
            if key != id_name:
                _check_type(name, kind, COLUMNS[known[key]])
            places[known[key]] = place
    if id_name is not None and message_id is None:
        raise SchemaMismatch(
            f"Option messageIdColumn names '{message_id_column}', which is not a column of the table; it has "
            f"{', '.join(name for name, _ in fields)}."
        )
    if "body" not in places and "encoded" not in places:
        raise SchemaMismatch(
            "The table has neither a column 'body' (binary or string) nor 'encoded' (binary): there is "
            "nothing to send."
        )
    return Columns(places, places.get("messageId") if message_id is None else message_id, tuple(nulls))


def _check_type(name: str, kind: str, wanted: tuple[str, str]) -> None:
    words, pattern = wanted
    if kind != "void" and re.fullmatch(pattern, kind) is None:  # void: the type of NULL alone
        raise SchemaMismatch(f"Column '{name}' must be {words}; it is {kind}.")


def _unknown_column(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in COLUMNS], 1)
    meant = next((f" Did you mean '{known}'?" for known in COLUMNS if [known.lower()] == near), "")
    return f"Column '{name}' cannot be sent.{meant} Columns that can: {', '.join(COLUMNS)}."
