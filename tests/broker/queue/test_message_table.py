"""The ordered table of messages, against a plain dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.queue.message_table import CHUNK_SIZE, DENSE_MIN, SPARSE_MAX, MessageTable
from peeklock.broker.vocabulary.message import Message


def message(position: int) -> Message:
    made = Message(1)
    made.position = position
    return made


positions = st.integers(min_value=0, max_value=4 * CHUNK_SIZE) | st.integers(min_value=0, max_value=1 << 70)
steps = st.lists(st.tuples(st.sampled_from(["put", "put", "remove", "from"]), positions), max_size=200)


@given(steps)
def test_it_agrees_with_a_dict(steps: list[tuple[str, int]]) -> None:
    """Req: S-11"""
    table, model = MessageTable(), {}
    for step, position in steps:
        if step == "put" and position not in model:
            model[position] = message(position)
            table.put(position, model[position])
        elif step == "remove":
            assert table.remove(position) is model.pop(position, None)
        else:
            expected = [model[found] for found in sorted(model) if found >= position]
            assert list(table.iterate(position)) == expected
            assert table.first_from(position) is (expected[0] if expected else None)
        assert table.get(position) is model.get(position)
        assert len(table) == len(model)
    table.check()


@given(st.sets(positions, max_size=600))
def test_filling_is_the_same_as_putting_one_by_one(chosen: set[int]) -> None:
    """Req: R-02"""
    table = MessageTable()
    table.fill([(position, message(position)) for position in sorted(chosen)])
    table.check()
    assert [found.position for found in table] == sorted(chosen)


def test_a_chunk_turns_into_a_list_and_back() -> None:
    """Req: T-08"""
    table = MessageTable()
    for position in range(CHUNK_SIZE):
        table.put(position, message(position))
        table.check()
    assert len(table.chunk(0)) == CHUNK_SIZE
    for position in range(CHUNK_SIZE - 1):
        table.remove(position)
        table.check()
    assert [found.position for found in table.chunk(0)] == [CHUNK_SIZE - 1]
    table.remove(CHUNK_SIZE - 1)
    assert not table.has_chunk(0)
    assert table.chunk(0) == []
    assert DENSE_MIN < SPARSE_MAX < CHUNK_SIZE


def test_keys_need_not_be_positions() -> None:
    """Req: S-01"""
    table = MessageTable()
    for key in range(100):
        table.put(key, message(1_000 - key))
    for key in range(95):
        table.remove(key)
    table.check()
    assert [found.position for found in table.iterate(0)] == [905, 904, 903, 902, 901]
