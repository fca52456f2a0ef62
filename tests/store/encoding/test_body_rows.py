"""Body rows: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import body_rows


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
    with pytest.raises(StoreDamaged, match="body row 4 was replaced by another row: it has the number 3"):
        body_rows.unpack(4, data)


def of_version_1(row: int, payloads: list[bytes]) -> bytes:
    head = struct.pack("<QI", row, len(payloads))
    checked = head + struct.pack(f"<{len(payloads)}I", *map(len, payloads)) + b"".join(payloads)
    return struct.pack("<BI", 1, zlib.crc32(checked, 1)) + checked


def test_a_row_of_version_1_is_read() -> None:
    """It has no checksums of payloads. Req: R-07."""
    data = of_version_1(3, [b"one", b"", b"three"])
    assert body_rows.read(3, data) == ([b"one", b"", b"three"], [])
    with pytest.raises(StoreDamaged, match="body row 3 fails its checksum"):
        body_rows.read(3, data[:-1] + b"E")


def test_a_damaged_payload_is_named_and_the_others_are_whole() -> None:
    """Req: R-03."""
    payloads = [b"one", b"", b"three", b"four"]
    data = body_rows.pack(3, payloads)
    broken = data.replace(b"three", b"thr3e")
    assert body_rows.read(3, broken) == ([b"one", b"", b"thr3e", b"four"], [2])
    with pytest.raises(StoreDamaged, match=r"^body row 3 fails the checksum of the payload in slot 2$"):
        body_rows.unpack(3, broken)
    broken = broken.replace(b"four", b"f0ur")
    assert body_rows.read(3, broken)[1] == [2, 3]
    with pytest.raises(StoreDamaged, match=r"the checksum of 2 payloads, the first in slot 2$"):
        body_rows.unpack(3, broken)


def test_payloads_that_changed_places_are_found() -> None:
    """Req: R-03."""
    data = body_rows.pack(3, [b"first", b"other"])
    swapped = data.replace(b"firstother", b"otherfirst")
    assert body_rows.read(3, swapped)[1] == [0, 1]


def test_a_row_of_another_version_is_named() -> None:
    """Req: R-07."""
    with pytest.raises(StoreDamaged, match="body row 3 has version 9; this release knows 1 to 2"):
        body_rows.unpack(3, b"\x09" + body_rows.pack(3, [b"one"])[1:])


@given(st.binary(max_size=200))
def test_garbage_gives_only_store_damaged(data: bytes) -> None:
    """Req: R-03."""
    with pytest.raises(StoreDamaged):
        body_rows.unpack(1, data)
