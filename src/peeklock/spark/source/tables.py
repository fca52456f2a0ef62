"""The options of a table in Spark's catalog.

Spark hands the options of `CREATE TABLE ... USING servicebus OPTIONS (...)` to the data source when it asks
for the columns, and never again: a reader or writer gets only the options of its statement, and the columns.
So the source answers with columns of which one, `sequenceNumber`, has the options as its comment.

The broker sets this column, so rows that come from another table's `sequenceNumber` are refused, and cannot
go where that table's comment leads. Secrets are refused here: a catalog shows comments to everybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from peeklock.client.errors import OptionError
from peeklock.spark.options import Mode, Use, named_options, read_options
from peeklock.spark.source.schema import row_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_CARRIER: Final = "sequenceNumber"
_MARK: Final = "servicebus "

_GIVEN: Final = "option."
"""Before the names of options in a table's properties, which Spark hands in as options, too."""


def created_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that Spark creates; None if it does not create one."""
    if "provider" not in (key.lower() for key in options):
        return None
    return {key[len(_GIVEN) :]: value for key, value in options.items() if key.lower().startswith(_GIVEN)}


def table_ddl(options: Mapping[str, str]) -> str:
    """Return a new table's columns, its body a string. Raises: OptionError."""
    kept = named_options(options)
    _refuse_secret(kept)
    is_stream = kept.get("mode", Mode.BROWSE.value).lower() != Mode.BROWSE.value
    read_options({}, Use.WRITE, kept)
    if "topicName" not in kept or "subscriptionName" in kept:
        read_options({}, Use.STREAM_READ if is_stream else Use.BATCH_READ, kept)
    comment = (_MARK + json.dumps(kept)).replace("\\", "\\\\").replace("'", "\\'")
    return ", ".join(
        f"`{name}` {'string' if name == 'body' else kind}"
        + (f" COMMENT '{comment}'" if name == _CARRIER else "")
        for name, kind in row_columns(include_encoded=kept.get("includeEncoded", "").lower() == "true")
    )


def table_options(schema: StructType) -> dict[str, str]:
    """Return the options of the table with these columns; none if it is not one of ours.

    Raises: OptionError.
    """
    for column in schema.fields:
        comment = str((column.metadata or {}).get("comment", ""))
        if column.name.lower() == _CARRIER.lower() and comment.startswith(_MARK):
            try:
                found = json.loads(comment[len(_MARK) :])
            except ValueError:
                found = None
            if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
                raise OptionError(
                    f"the comment of column {column.name} has the table's options, and is not a JSON object "
                    "of strings: create the table again."
                )
            return found
    return {}


def _refuse_secret(kept: Mapping[str, str]) -> None:
    if "connectionString" in kept:
        raise OptionError(
            "option connectionString is not for tables: it has a secret, which the catalog would keep. Set "
            "option connection instead, env:NAME or file:/path, which names where the secret is."
        )
