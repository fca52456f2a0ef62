"""The limit of open files: raised at the start, and what it is enough for."""

from __future__ import annotations

import contextlib
import resource
import sys

RESERVED = 64
"""File descriptors that no connection gets: the store opens files while it runs. Our choice."""

OF_A_NAMESPACE = 9
"""Files of a durable store in full use."""

OF_CLIENTS = 512
"""Kept for the process and its clients where namespaces are counted. Our choice."""


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # where the hard limit means less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_max() -> int:
    """Return the first descriptor number that no connection gets."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - RESERVED, soft // 2)


def namespaces_max() -> int:
    """Return how many namespaces fit, with room for clients."""
    return max(0, descriptors_max() - OF_CLIENTS) // OF_A_NAMESPACE
