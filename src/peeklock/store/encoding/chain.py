"""That frames follow one another: none is missing between two, and none was replaced.

Owns: what a frame must say of the one before it. Must not know: what is in a frame, where frames are kept.

Each frame states the checksum of the frame before it, and its own checksum covers that statement. So a frame
that was put back from an older copy of the file is found by the frame behind it, although its own checksum is
right. The journal loses frames at its head alone, and what still holds is recorded again at its end, so the
chain is whole from the first frame that is kept. A frame of version 1 states nothing: the chain begins at the
last one of them. What the last frame should be, no frame says.
"""

from __future__ import annotations

from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import frames


class Chain:
    """Frames in the order in which they were written."""

    def __init__(self) -> None:
        self._next_no: int | None = None  # None before the first frame
        self._checksum: int | None = None  # of the frame before, None when it is not known

    def follow(self, no: int, meta: bytes) -> None:
        """Check that a sound frame follows the one before it; the frame after it is checked against it either
        way.

        Raises: StoreDamaged.
        """
        expected, checksum = self._next_no, self._checksum
        self._next_no, self._checksum = no + 1, frames.checksum_of(meta)
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))
        previous = frames.previous_of(meta)
        if checksum is not None and previous is not None and previous != checksum:
            raise StoreDamaged(
                f"frame {no} does not follow the frame {no - 1} that is there: it was written after one with "
                f"the checksum {previous:08x}, this one has {checksum:08x}"
            )

    def follow_damaged(self, no: int) -> None:
        """Check the number of a frame whose bytes are damaged; the frame after it is checked by number alone.

        Raises: StoreDamaged.
        """
        expected = self._next_no
        self._next_no, self._checksum = no + 1, None
        if expected is not None and no != expected:
            raise StoreDamaged(_gap(expected, no))


def _gap(expected: int, found: int) -> str:
    missing = f"frame {expected} is" if found == expected + 1 else f"frames {expected} to {found - 1} are"
    return f"{missing} missing from the journal: frame {found} comes next"
