"""QueueDescription: what is written can be read back, whatever the settings."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.elements import Shown, read_queue, write_description
from peeklock.admin.reading import read_description
from peeklock.broker.vocabulary.descriptions import EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import EntityView
from tests.admin.strategies import DURATIONS, NAMES, SCHEMES, XML_TEXT, read_from, with_addresses

BARE_DESCRIPTIONS = st.builds(
    QueueDescription,
    name=NAMES,
    lock_duration_ms=DURATIONS,
    max_size_mb=st.integers(1024, 10**9),  # of a partition at least so much, or its size cannot be told
    requires_duplicate_detection=st.booleans(),
    requires_session=st.booleans(),
    default_ttl_ms=DURATIONS,
    dead_lettering_on_expiration=st.booleans(),
    duplicate_window_ms=DURATIONS,
    max_delivery_count=st.integers(-(10**9), 10**9),
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(EntityStatus),
    forward_to=st.none() | NAMES,
    forward_dead_lettered_to=st.none() | NAMES,
    user_metadata=st.none() | XML_TEXT.filter(bool),
    auto_delete_on_idle_ms=DURATIONS,
    enable_partitioning=st.booleans(),
    enable_express=st.booleans(),
    max_message_size_kb=st.none() | st.integers(1, 10**6).filter(lambda size: size != 256),
)
DESCRIPTIONS = st.builds(with_addresses, BARE_DESCRIPTIONS, SCHEMES)


def entry(description: QueueDescription) -> bytes:
    view = EntityView(1, description, 1, 2, 3, 4, 5, 6, 7, 8)
    return (
        f"<entry><content>{write_description(Shown(view, 'localhost:5300', 256))}</content></entry>".encode()
    )


@given(DESCRIPTIONS)
def test_every_description_survives_writing_and_reading(description: QueueDescription) -> None:
    """Req: A-01. A client that reads and writes back changes nothing, but that names become addresses."""
    found = read_queue(read_description(entry(description)), description.name, 256)
    assert found == read_from(description, "localhost:5300")
    assert read_queue(read_description(entry(found)), description.name, 256) == found


def test_the_size_of_a_partitioned_queue_is_asked_for_a_partition_and_shown_for_all() -> None:
    """Req: A-01, S-02, C44. Source: wire contract 7.3: "partitioned: returned x16"."""
    asked = (
        b"<entry><content><QueueDescription><MaxSizeInMegabytes>%d</MaxSizeInMegabytes>"
        b"<EnablePartitioning>%s</EnablePartitioning></QueueDescription></content></entry>"
    )
    for size, partitioned, found in (
        (1024, b"true", 1024),
        (5120, b"true", 5120),
        (16_384, b"true", 1024),
        (81_920, b"true", 5120),
        (16_384, b"false", 16_384),
        (16_385, b"true", 16_385),
        (24_000, b"true", 1500),
    ):
        assert read_queue(read_description(asked % (size, partitioned)), "q", 256).max_size_mb == found
    assert b"<MaxSizeInMegabytes>32768<" in entry(
        QueueDescription("q", max_size_mb=2048, enable_partitioning=True)
    )


@given(DESCRIPTIONS, DESCRIPTIONS)
def test_only_what_an_update_leaves_out_of_the_immutable_comes_from_what_is_there(
    given_one: QueueDescription, existing: QueueDescription
) -> None:
    """Req: A-07."""
    whole = read_description(entry(given_one))
    assert read_queue(whole, "orders", 256, existing) == replace(
        read_from(given_one, "localhost:5300"), name="orders"
    )
    bare = read_description(b"<entry><content><QueueDescription/></content></entry>")
    assert read_queue(bare, "orders", 256, existing) == QueueDescription(
        "orders",
        requires_duplicate_detection=existing.requires_duplicate_detection,
        requires_session=existing.requires_session,
        enable_partitioning=existing.enable_partitioning,
    )
