"""Adding up a whole namespace, a slice of entities at a time."""

from __future__ import annotations

from peeklock.broker.handlers.totals import SLICE
from peeklock.broker.vocabulary.commands import DeleteEntity
from tests.broker.harness import Broker


def with_queues(count: int) -> Broker:
    """Return a broker with so many queues, each with a message."""
    broker = Broker()
    broker.checks = False  # of all indexes at each step: that many queues take too long
    for number in range(count):
        broker.send(broker.create(f"q{number:04}"))
    return broker


def test_a_namespace_of_one_slice_is_counted_at_one_instant() -> None:
    broker = with_queues(SLICE - 1)
    count = broker.namespace.count_totals()
    assert count.advance()
    assert count.totals == broker.namespace.totals()
    assert count.totals.active_messages == SLICE - 1


def test_a_slice_counts_a_bounded_number_of_entities() -> None:
    """Req: R-05."""
    broker = with_queues(2 * SLICE + 1)
    count = broker.namespace.count_totals()
    counted = []
    for _ in range(3):
        is_over = count.advance()
        counted.append(count.totals.active_messages)
    assert counted == [SLICE, 2 * SLICE, 2 * SLICE + 1]
    assert is_over
    assert count.totals == broker.namespace.totals()


def test_what_exists_throughout_a_count_counts_once() -> None:
    """Entities that come, go, or come again under their name meanwhile change nothing about the others."""
    broker = with_queues(2 * SLICE)
    count = broker.namespace.count_totals()
    assert not count.advance()
    for name in ("q0000", f"q{SLICE:04}", f"q{SLICE + 1:04}"):
        broker.do(DeleteEntity(name, broker.reply_to()))
    for name in ("a", "z", f"q{SLICE:04}"):
        broker.send(broker.create(name))
    while not count.advance():
        pass
    assert count.totals.active_messages == 2 * SLICE - 2  # without the two that went before their turn
