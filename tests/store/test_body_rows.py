"""Body rows: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.store import body_rows
from peeklock.store.base import StoreDamaged


@given(st.integers(0, 2**63 - 1), st.lists(st.binary(max_size=50), max_size=10))
def test_a_body_row_gives_back_every_payload(row: int, payloads: list[bytes]) -> None:
    assert body_rows.unpack(row, body_rows.pack(row, payloads)) == payloads


def test_every_flipped_bit_and_cut_of_a_body_row_is_found() -> None:
    """Req: R-03."""
    data = body_rows.pack(3, [b"one", b"", b"three"])
    for at in range(len(data)):
        with pytest.raises(StoreDamaged, match="body row 3 "):
            body_rows.unpack(3, data[:at])
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(StoreDamaged, match="body row 3 "):
                body_rows.unpack(3, bytes(broken))
    with pytest.raises(
        StoreDamaged, match="body row 4 is another row in its place: it says that it is row 3"
    ):
        body_rows.unpack(4, data)


@given(st.binary(max_size=200))
def test_garbage_gives_only_store_damaged(data: bytes) -> None:
    """Req: R-03."""
    with pytest.raises(StoreDamaged):
        body_rows.unpack(1, data)
