"""Columns of a message as a row: names, order and types, for Spark and for Arrow. All may be null.

They are close to the columns of Azure's Event Hubs connector, so that queries move easily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from peeklock.client.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TIME: Final = pa.timestamp("us", tz="UTC")

ENCODED: Final = "encoded"
"""The whole message as on the wire, with option includeEncoded: it can be sent again without loss."""

_TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "body": ("binary", pa.binary()),
    "entity": ("string", pa.string()),
    "sequenceNumber": ("bigint", pa.int64()),
    "enqueuedSequenceNumber": ("bigint", pa.int64()),
    "enqueuedTime": ("timestamp", _TIME),
    "messageId": ("string", pa.string()),
    "sessionId": ("string", pa.string()),
    "partitionKey": ("string", pa.string()),
    "correlationId": ("string", pa.string()),
    "subject": ("string", pa.string()),
    "contentType": ("string", pa.string()),
    "to": ("string", pa.string()),
    "replyTo": ("string", pa.string()),
    "deliveryCount": ("bigint", pa.int64()),
    "expiresAt": ("timestamp", _TIME),
    "scheduledEnqueueTime": ("timestamp", _TIME),
    "state": ("string", pa.string()),
    "deadLetterReason": ("string", pa.string()),
    "deadLetterErrorDescription": ("string", pa.string()),
    "deadLetterSource": ("string", pa.string()),
    "applicationProperties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    ENCODED: ("binary", pa.binary()),
}


def row_ddl(*, include_encoded: bool = False) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"`{name}` {ddl}" for name, ddl in row_columns(include_encoded=include_encoded))


def row_columns(*, include_encoded: bool = False) -> list[tuple[str, str]]:
    """Return name and type of each column, the types as in Spark's DDL."""
    return [(name, ddl) for name, (ddl, _) in _TYPES.items() if include_encoded or name != ENCODED]


def row_schema(*, include_encoded: bool = False) -> pa.Schema:
    """Return the columns as an Arrow schema, exactly as Spark checks them."""
    return pa.schema(
        [(name, kind) for name, (_, kind) in _TYPES.items() if include_encoded or name != ENCODED]
    )


def chosen_schema(wanted: StructType) -> pa.Schema:
    """Return the Arrow columns that a user chose with `.schema(...)`, in any order.

    `body` may be a string: the same bytes, as Spark's own cast makes it.

    Raises: OptionError.
    """
    chosen: list[tuple[str, pa.DataType]] = []
    for column in wanted.fields:
        known = _TYPES.get(column.name)
        found = column.dataType.simpleString()
        if known is None:
            raise OptionError(
                f"the schema has the column {column.name!r}, which messages do not have; they have "
                f"{', '.join(_TYPES)}. Correct .schema(...) or the columns of the table or view."
            )
        kind = pa.string() if (column.name, found) == ("body", "string") else known[1]
        if found != known[0] and kind == known[1]:
            raise OptionError(
                f"column {column.name} is {found} in the schema, and {known[0]} in messages: correct "
                ".schema(...) or the columns of the table or view, and cast afterwards."
            )
        chosen.append((column.name, kind))
    return pa.schema(chosen)
