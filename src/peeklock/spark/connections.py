"""Named connections: a connection string that a table or a query names, and does not contain.

Option `connection` is `env:NAME`, a variable of the environment, or `file:/path`, a file. It is read where
Spark plans the query, and no text quotes what was read.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from peeklock.client.errors import OptionError


def named_connection(place: str) -> str:
    """Return the connection string at `env:NAME` or `file:/path`. Raises: OptionError."""
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        found = os.environ.get(name)
        if found is None:
            raise _unusable(
                place, "the variable is not set", f"Set {name} before Spark's driver starts its Java."
            )
    elif kind == "file" and Path(name).is_absolute():
        try:
            found = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise _unusable(
                place,
                f"the file cannot be read ({error.strerror})",
                "Put the connection string there, readable by Spark's driver.",
            ) from None
        except UnicodeDecodeError:
            raise _unusable(
                place, "the file is not UTF-8 text", "Put only the connection string there."
            ) from None
    else:
        # The value is not shown: it may be the secret itself.
        raise OptionError(
            "option connection must be env:NAME, a variable of the environment, or file:/path, with an "
            "absolute path, where the connection string is."
        )
    if not found.strip():
        raise _unusable(place, "it is empty", "Put the connection string there.")
    return found


def _unusable(place: str, what: str, remedy: str) -> OptionError:
    return OptionError(f"option connection is {place!r}: on host {socket.gethostname()} {what}. {remedy}")
