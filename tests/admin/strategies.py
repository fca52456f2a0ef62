"""What settings of entities and parts of rules may be, for properties that hold for all of them."""

from __future__ import annotations

from datetime import UTC

from hypothesis import strategies as st

from peeklock.broker.descriptions import UNLIMITED_MS

DURATIONS = st.integers(0, UNLIMITED_MS)
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda name: "//" not in name
)
XML_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff", min_codepoint=32)
    | st.sampled_from("\t\n\r")
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | XML_TEXT
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=8)
)
