"""What a store knows of its event rows without reading them."""

from __future__ import annotations

import tracemalloc
from random import Random

from peeklock.store.event_backlog import EMPTY_ROW_BYTES, GROUP_BYTES_MAX, EventBacklog


def test_numbers_are_exact_and_sizes_nearly_so() -> None:
    """Req: X-03. Rows of all sizes, numbers that are missing, dropped in steps that end anywhere."""
    random = Random(7)
    backlog = EventBacklog(())
    model: dict[int, int] = {}
    no = last_full_no = dropped_to = 0
    for _ in range(20_000):
        no += 1 if random.random() < 0.999 else 1_000
        size_bytes = random.choice([EMPTY_ROW_BYTES, EMPTY_ROW_BYTES, 90, 900, 3 * GROUP_BYTES_MAX])
        backlog.add(no, size_bytes)
        model[no] = size_bytes
        last_full_no = no if size_bytes > EMPTY_ROW_BYTES else last_full_no
        if random.random() < 0.01:
            dropped_to = random.randint(dropped_to, no)
            backlog.drop_to(dropped_to)
            model = {number: size for number, size in model.items() if number > dropped_to}
            assert len(backlog) == len(model)
            assert backlog.first_no == min(model, default=None)
            assert backlog.last_no == max(model, default=None)
            assert abs(backlog.size_bytes - sum(model.values())) < GROUP_BYTES_MAX
        assert backlog.last_full_no == last_full_no
    backlog.drop_to(no)
    assert (len(backlog), backlog.size_bytes, backlog.first_no, backlog.last_no) == (0, 0, None, None)
    assert backlog.last_full_no == last_full_no


def test_what_a_store_has_at_its_start_counts() -> None:
    """Req: X-03"""
    backlog = EventBacklog([(5, 100), (6, EMPTY_ROW_BYTES), (9, EMPTY_ROW_BYTES)])
    assert (len(backlog), backlog.first_no, backlog.last_no, backlog.last_full_no) == (3, 5, 9, 5)
    assert backlog.size_bytes == 100 + 2 * EMPTY_ROW_BYTES


def test_when_all_events_are_exported_the_size_is_exact() -> None:
    """Req: X-03. What is left has nothing in it, whatever stood before it."""
    backlog = EventBacklog([(1, 9_000), (2, 500), *((no, EMPTY_ROW_BYTES) for no in range(3, 13))])
    backlog.drop_to(1)
    assert 0 < backlog.size_bytes < 9_670
    backlog.drop_to(2)
    assert (len(backlog), backlog.size_bytes) == (10, 10 * EMPTY_ROW_BYTES)
    backlog.drop_to(5)
    assert (len(backlog), backlog.size_bytes) == (7, 7 * EMPTY_ROW_BYTES)


def test_a_long_backlog_takes_little_memory() -> None:
    """Req: X-03. A hundred thousand commits of a message each: 128 bytes a row would be 13 MB."""
    tracemalloc.start()
    backlog = EventBacklog((no, 120) for no in range(1_000_000, 1_100_000))
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(backlog) == 100_000
    assert used_bytes < 300_000
