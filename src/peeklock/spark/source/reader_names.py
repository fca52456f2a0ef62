"""How a stream in mode cursor names itself: its cursor, and the owner that the broker knows it by."""

from __future__ import annotations

import os
import socket

from peeklock.client.errors import OptionError
from peeklock.spark.source.offsets import ReaderName

HOST_CHARACTERS_MAX = 100
"""Of the host in an owner's name; the broker takes 128 characters."""


def new_reader(cursor: str | None, *, hands_start_in: bool) -> ReaderName:
    """Return a reader that no other query is; without a cursor's name, with a cursor of its own.

    Where the checkpoint cannot give the owner back, it is the same for all queries of that cursor.
    """
    if cursor is not None and not hands_start_in:
        return ReaderName(cursor, f"cursor:{cursor}")
    number = os.urandom(8).hex()  # noqa: TID251  # Spark makes the reader, and passes options alone
    owner = f"{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{number}"
    return ReaderName(cursor or f"spark-{number}", owner)


def require_name(cursor: str | None, *, hands_start_in: bool) -> None:
    """Require a cursor's name where the checkpoint cannot give it. Raises: OptionError."""
    if cursor is None and not hands_start_in:
        raise OptionError(
            "option consumerName is missing: before Spark 4.2 a query does not learn from its checkpoint "
            "which cursor it had, so give it a name that no other query has."
        )
