"""Peeks that leave the broker's other clients their time: small pages, and pauses when answers become slow.

Theory of operation. The broker answers a peek in one turn of its event loop, so a page is what another client
may have to wait for. The next page is asked for when the last one was worked on: meanwhile the loop is free
of this reader. A slow answer says that the broker, or the machine, is busy with others: the page becomes
smaller, and a pause follows. With fast answers it grows again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from peeklock.client.browsing import Browser, sequence_number

PAGE: Final = (16, 48)
"""Smallest and largest page, messages. Our choice: 48 of them take 0.3 ms of the broker's loop, and 45,000
messages a second are read."""

SLOW_S: Final = 0.004
"""An answer that takes longer is slow. Our choice: ten times what it takes of a free broker."""

PAUSE_S_MAX: Final = 0.005

_END: Final = 1 << 63


def paced(
    browser: Browser,
    number: int,
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[bytes]]:
    """Yield the messages from a sequence number on, page by page. Raises: ServiceBusError."""
    smallest, count = PAGE
    while number < _END:
        asked_s = clock_s()
        page = browser.peek(number, count)
        if not page:
            return
        late_s = clock_s() - asked_s - SLOW_S
        number = sequence_number(page[-1]) + 1
        yield page
        if late_s > 0:
            count = max(smallest, count // 2)
            sleep(min(PAUSE_S_MAX, late_s))
        else:
            count = min(PAGE[1], count + smallest)
