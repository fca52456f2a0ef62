"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 20
"""For what is awaited. Our choice: many times what it takes."""

T = TypeVar("T")


def until(found: Callable[[], T]) -> T:
    """Look until something is found, at most `SECONDS_MAX`, and return what the last look gave."""
    ends_s = time.monotonic() + SECONDS_MAX
    while not (result := found()) and time.monotonic() < ends_s:
        time.sleep(0.02)
    return result
