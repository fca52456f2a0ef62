"""What settings of entities and parts of rules may be, for properties that hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any, TypeVar

from hypothesis import strategies as st

from peeklock.broker.vocabulary.descriptions import (
    GIVEN_FORWARDS,
    UNLIMITED_MS,
    QueueDescription,
    SubscriptionDescription,
)

D = TypeVar("D", QueueDescription, SubscriptionDescription)

DURATIONS = st.integers(0, UNLIMITED_MS)
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,20}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda name: "//" not in name
)


def with_addresses(description: D, schemes: tuple[str | None, str | None]) -> D:
    """Return the description with its forwards given by address; None = by the name alone."""
    for (field, address), scheme in zip(GIVEN_FORWARDS.items(), schemes, strict=True):
        name = getattr(description, field)
        given = None if name is None or scheme is None else f"{scheme}://Broker.lan:80/{name}/"
        changed: dict[str, Any] = {address: given}
        description = replace(description, **changed)
    return description


SCHEMES = st.tuples(*[st.sampled_from([None, "sb", "https", "HTTP"])] * 2)


def read_from(description: D, host: str) -> D:
    """Return what a client has that reads from a host: a name alone is an address there."""
    for field, address in GIVEN_FORWARDS.items():
        name, given = getattr(description, field), getattr(description, address)
        if name is not None:
            changed: dict[str, Any] = {address: given or f"sb://{host}/{name}"}
            description = replace(description, **changed)
    return description


XML_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff", min_codepoint=32)
    | st.sampled_from("\t\n\r")
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | XML_TEXT
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**28), max_value=10**28, places=8)
)
