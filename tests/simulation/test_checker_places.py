"""The checker on partitions, duplicates, forwards and entities: where a message may be, and with which
number."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.changes import EntityRemoved
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.records import PARTITION_SHIFT, TRANSFER_DEAD_LETTER, Record, Violation
from tests.simulation.oracle.story import OTHER, QUEUE, WINDOW_MS, Story, record

pytestmark = pytest.mark.simulation

FORWARDS = {"forward_to": "jobs"}


def in_partition(position: int, partition: int, order: int, **changed: object) -> Record:
    number = partition << PARTITION_SHIFT | order
    return record(position, sequence_number=number, enqueued_sequence_number=number, **changed)  # type: ignore[arg-type]  # keyword arguments of several types


def counters(**nexts: int) -> dict[int, list[int]]:
    """Return what each partition issues next; `p3=5`: the third issues 5."""
    return {QUEUE: [nexts.get(f"p{partition}", 1) for partition in range(16)]}


# Partitions


def test_each_partition_counts_by_itself() -> None:
    story = Story({"enable_partitioning": True})
    story.send(1, 2, 3)
    story.commit(in_partition(1, 0, 1), in_partition(2, 7, 1), partitions=counters(p0=2, p7=2))
    story.commit(in_partition(3, 7, 2), partitions=counters(p0=2, p7=3))


def test_a_partition_must_not_issue_a_number_again() -> None:
    story = Story({"enable_partitioning": True})
    story.send(1, 2)
    story.commit(in_partition(1, 7, 1), partitions=counters(p7=2))
    with pytest.raises(Violation, match="used again"):
        story.commit(in_partition(2, 7, 1), partitions=counters(p7=2))


def test_a_partition_must_not_skip_a_number() -> None:
    story = Story({"enable_partitioning": True})
    story.send(1, 2)
    with pytest.raises(Violation, match="not issued together"):
        story.commit(in_partition(1, 7, 2), partitions=counters(p7=3))


def test_the_empty_session_id_is_no_key_where_sessions_are_not_required() -> None:
    """Source: wire contract C11."""
    story = Story({"enable_partitioning": True})
    story.send(1, session_id="", partition_key="north")
    story.send(2, session_id="", partition_key="south")
    story.commit(in_partition(1, 7, 1), in_partition(2, 8, 1), partitions=counters(p7=2, p8=2))
    story.send(3, session_id="", partition_key="north")
    with pytest.raises(Violation, match="key 'north' was in partition 7 before"):
        story.commit(in_partition(3, 8, 2), partitions=counters(p7=2, p8=3))


def test_a_key_must_stay_in_its_partition() -> None:
    story = Story({"enable_partitioning": True})
    story.send(1, 2, partition_key="north")
    story.commit(in_partition(1, 7, 1), partitions=counters(p7=2))
    with pytest.raises(Violation, match="was in partition 7 before"):
        story.commit(in_partition(2, 8, 1), partitions=counters(p7=2, p8=2))


# Duplicates


def test_an_id_must_not_be_stored_twice_within_the_window() -> None:
    story = Story({"requires_duplicate_detection": True, "duplicate_window_ms": WINDOW_MS})
    story.send(1, 2, 3, message_id="same")
    story.commit(record(1))
    story.now_ms += WINDOW_MS - 1
    with pytest.raises(Violation, match="is a duplicate"):
        story.commit(record(2))


def test_an_id_may_come_again_after_the_window() -> None:
    story = Story({"requires_duplicate_detection": True, "duplicate_window_ms": WINDOW_MS})
    story.send(1, 2, message_id="same")
    story.commit(record(1))
    story.checker.send_answered([1], "accepted")
    story.now_ms += WINDOW_MS
    story.commit(record(2))


def test_a_duplicate_is_accepted_without_being_stored() -> None:
    story = Story({"requires_duplicate_detection": True, "duplicate_window_ms": WINDOW_MS})
    story.send(1, 2, message_id="same")
    story.commit(record(1))
    story.checker.send_answered([1], "accepted")
    story.checker.send_answered([2], "accepted")
    assert story.checker.sent[2].outcome == "dropped"


def test_in_a_partitioned_queue_the_key_belongs_to_the_id() -> None:
    story = Story(
        {
            "requires_duplicate_detection": True,
            "duplicate_window_ms": WINDOW_MS,
            "enable_partitioning": True,
        }
    )
    story.send(1, message_id="same", partition_key="north")
    story.send(2, message_id="same", partition_key="south")
    story.commit(in_partition(1, 7, 1), in_partition(2, 8, 1), partitions=counters(p7=2, p8=2))


def test_an_id_counts_also_where_it_only_passes() -> None:
    detects = {"requires_duplicate_detection": True, "duplicate_window_ms": WINDOW_MS}
    story = Story({**FORWARDS, **detects})
    story.send(1, 2, message_id="same")
    story.commit(passed(1), issued={QUEUE: 2})
    with pytest.raises(Violation, match="is a duplicate"):
        story.commit(passed(2), issued={QUEUE: 3})


# Forwards


def passed(uid: int, **changed: object) -> Record:
    """Make the record of a message that was sent to `orders` and forwarded to `jobs` at once."""
    return record(uid, queue_id=OTHER, hops=1, **changed)  # type: ignore[arg-type]  # keyword arguments of several types


def test_a_forwarded_message_is_where_it_was_forwarded_to() -> None:
    story = Story(FORWARDS)
    story.send(1)
    story.commit(passed(1), issued={QUEUE: 2})
    story.checker.send_answered([1], "accepted")


def test_a_message_must_not_be_where_nothing_forwards_to() -> None:
    story = Story()
    story.send(1)
    with pytest.raises(Violation, match="no way leads there"):
        story.commit(passed(1))


def test_hops_must_be_counted() -> None:
    story = Story(FORWARDS)
    story.send(1)
    with pytest.raises(Violation, match="no way leads there"):
        story.commit(record(1, queue_id=OTHER), issued={QUEUE: 2})


def test_the_number_of_the_source_must_be_kept() -> None:
    story = Story(FORWARDS)
    story.send(1)
    with pytest.raises(Violation, match="was not issued just now"):
        story.commit(passed(1, enqueued_sequence_number=9), issued={QUEUE: 2})


def test_a_forward_must_not_copy() -> None:
    story = Story(FORWARDS)
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="two places"):
        story.commit(passed(1))


def test_a_forward_must_not_lose() -> None:
    story = Story(FORWARDS)
    story.send(1)
    story.commit(record(1))
    with pytest.raises(Violation, match="without a request"):
        story.commit(((QUEUE, 1),))


def test_numbers_must_not_be_issued_for_nothing() -> None:
    story = Story(FORWARDS)
    story.send(1)
    with pytest.raises(Violation, match="skipped"):
        story.commit(passed(1), issued={QUEUE: 3})


def test_a_transfer_must_not_fail_for_nothing() -> None:
    story = Story(FORWARDS)
    story.send(1)
    with pytest.raises(Violation, match="no way leads there"):
        story.commit(record(1, queue_id=QUEUE + TRANSFER_DEAD_LETTER), issued={QUEUE: 2})


def test_the_entity_a_dead_letter_comes_from_must_be_named() -> None:
    story = Story({"forward_dead_lettered_to": "jobs"})
    story.send(1)
    story.commit(record(1))
    story.checker.sent[1].reasons.add("dead-letter None")
    moved = record(1, queue_id=OTHER, slot=0, hops=1)
    with pytest.raises(Violation, match="no way leads there"):
        story.commit(((QUEUE, 1),), moved)


# Entities


def test_an_entity_must_not_go_by_itself() -> None:
    story = Story()
    with pytest.raises(Violation, match="without a request"):
        story.commit(EntityRemoved(1))


def test_a_deleted_entity_takes_its_messages_with_it() -> None:
    story = Story()
    story.send(1)
    story.commit(record(1))
    story.checker.deleting("orders")
    story.commit(EntityRemoved(1))
    assert not story.checker.facts.live
    with pytest.raises(Violation, match="does not exist"):
        story.commit(record(2, slot=1))


def test_an_entity_must_not_be_deleted_before_it_was_idle_for_long_enough() -> None:
    story = Story({"auto_delete_on_idle_ms": 300_000})
    story.checker.receiving("orders", "a link", on=True)
    story.now_ms += 400_000
    story.checker.receiving("orders", "a link", on=False)
    story.now_ms += 299_999
    with pytest.raises(Violation, match="without a request"):
        story.commit(EntityRemoved(1))


def test_an_idle_entity_may_go() -> None:
    story = Story({"auto_delete_on_idle_ms": 300_000})
    story.now_ms += 300_000
    story.commit(EntityRemoved(1))


def test_an_entity_with_a_scheduled_message_is_not_idle() -> None:
    story = Story({"auto_delete_on_idle_ms": 300_000})
    story.send(1)
    story.commit(record(1, state=MessageState.SCHEDULED))
    story.now_ms += 400_000
    with pytest.raises(Violation, match="without a request"):
        story.commit(EntityRemoved(1))
