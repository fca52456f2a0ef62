"""The configuration file that a data folder's queues agree with, for `peeklock export`.

Owns: what is exported. Must not know: the form of the file, how a folder is read.
"""

from __future__ import annotations

from pathlib import Path

from peeklock.server.config import format_config
from peeklock.store.looking import read_definitions


def export_config(folder: Path) -> str:
    """Give the text of the file. Raises: StoreFailed, StoreDamaged, StoreTooNew."""
    return format_config(entity.description for entity in read_definitions(folder).entities)
