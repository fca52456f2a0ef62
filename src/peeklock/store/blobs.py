"""Numbered blobs in memory whose copies are cheap: frames and body rows of a store in memory.

Blobs are kept in pages of adjacent numbers. A copy shares all pages, and a page is copied when it is changed
next. So a copy of a million blobs takes as long as one of the page table, and no later change takes longer
than one page. Must not know what the blobs are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from peeklock.store.base import Blob

PAGE_BITS: Final = 10
"""Numbers of a page: 1,024. Our choice: a page is copied in 5 us, and a million blobs have 1,000 pages."""


class Blobs:
    """Blobs by their numbers, which are added in ascending order."""

    def __init__(self, pages: dict[int, dict[int, bytes]] | None = None) -> None:
        """`pages`: of another one, which shares them from now on."""
        self._pages = {} if pages is None else dict(pages)
        self._shared = set(self._pages)

    def copy(self) -> Blobs:
        """Return blobs that later changes of these do not change."""
        self._shared.update(self._pages)
        return Blobs(self._pages)

    def add(self, no: int, data: bytes) -> None:
        """Add a blob with a number above all others."""
        self._own(no >> PAGE_BITS)[no] = data

    def drop(self, no: int) -> None:
        """Remove a blob, if it is there."""
        at = no >> PAGE_BITS
        if no in self._pages.get(at, ()):
            page = self._own(at)
            del page[no]
            if not page:
                del self._pages[at]

    def drop_before(self, no: int) -> None:
        """Remove all blobs with lower numbers."""
        end = no >> PAGE_BITS
        for at in list(self._pages):
            if at > end:
                break
            if at < end:
                del self._pages[at]
                self._shared.discard(at)
            else:
                for number in [number for number in self._pages[at] if number < no]:
                    self.drop(number)

    def get(self, no: int) -> bytes | None:
        """Return a blob; None = it is not there."""
        page = self._pages.get(no >> PAGE_BITS)
        return None if page is None else page.get(no)

    def first(self) -> int:
        """Return the lowest number; 0 = there is none."""
        return next(iter(self.above(0)), (0, b""))[0]

    def last(self) -> int:
        """Return the highest number; 0 = there is none."""
        page = next(reversed(self._pages.values()), None)
        return 0 if page is None else next(reversed(page))

    def above(self, after: int) -> Iterator[Blob]:
        """Yield the blobs above a number; none may be added or removed meanwhile."""
        pages = list(self._pages)
        for at in pages[bisect_left(pages, after >> PAGE_BITS) :]:
            for blob in self._pages[at].items():
                if blob[0] > after:
                    yield blob

    def numbers(self) -> list[int]:
        """Return all numbers."""
        return [no for page in self._pages.values() for no in page]

    def _own(self, at: int) -> dict[int, bytes]:
        """Return a page to change."""
        page = self._pages.get(at)
        if page is None:
            page = self._pages[at] = {}
        elif at in self._shared:
            page = self._pages[at] = page.copy()
        self._shared.discard(at)
        return page
