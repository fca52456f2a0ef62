"""The check that frames follow one another: none is missing between two, and none was replaced.

Each frame states the checksum of the frame before it, under its own checksum. So a frame from an older copy
of the file, which is sound by itself, is found by the frame behind it. The journal drops frames at its head
alone, so the chain is whole from the first frame that is kept. A frame of version 1 states nothing: the chain
begins at the last one of them. No frame proves that it is the last one (see `sqlite.tail`).
"""

from __future__ import annotations

from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import frames


class Chain:
    """Follows frames in their order."""

    def __init__(self) -> None:
        self._next_no: int | None = None  # None before the first frame
        self._checksum: int | None = None  # of the frame before, None = unknown

    def follow(self, no: int, meta: bytes) -> None:
        """Check that a sound frame follows the frame before. Raises: StoreDamaged; go on all the same."""
        expected, checksum = self._next_no, self._checksum
        self._next_no, self._checksum = no + 1, frames.checksum_of(meta)
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))
        previous = frames.previous_of(meta)
        if checksum is not None and previous is not None and previous != checksum:
            raise StoreDamaged(
                f"frame {no} does not follow frame {no - 1}: it was written after one with the checksum "
                f"{previous:08x}, and frame {no - 1} has {checksum:08x}"
            )

    def follow_damaged(self, no: int) -> None:
        """Check a damaged frame, and the frame after it, by number alone. Raises: StoreDamaged."""
        expected = self._next_no
        self._next_no, self._checksum = no + 1, None
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))


def _gap(expected: int, found: int) -> str:
    missing = f"frame {expected} is" if found == expected + 1 else f"frames {expected} to {found - 1} are"
    return f"{missing} missing from the journal: frame {found} comes next"
