"""Numbered blobs in memory, held to a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peeklock.store.blobs import PAGE_BITS, Blobs

_STEP = 1 << (PAGE_BITS - 2)
"""So that a few blobs take several pages."""

_changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, _STEP)),
        st.tuples(st.just("drop"), st.integers(0, 40 * _STEP)),
        st.tuples(st.just("drop_before"), st.integers(0, 40 * _STEP)),
        st.tuples(st.just("copy"), st.just(0)),
    ),
    max_size=60,
)


@given(_changes)
def test_they_are_a_dictionary_and_a_copy_stays_as_it_was(changes: list[tuple[str, int]]) -> None:
    blobs, model = Blobs(), dict[int, bytes]()
    copies = [(blobs.copy(), dict(model))]
    last = 0
    for change, number in changes:
        if change == "add":
            last += number
            blobs.add(last, b"%d" % last)
            model[last] = b"%d" % last
        elif change == "drop":
            blobs.drop(number)
            model.pop(number, None)
        elif change == "drop_before":
            blobs.drop_before(number)
            model = {no: data for no, data in model.items() if no >= number}
        else:
            copies.append((blobs.copy(), dict(model)))
    for found, expected in (*copies, (blobs, model)):
        assert list(found.above(0)) == list(expected.items())
        assert found.numbers() == list(expected)
        assert (found.first(), found.last()) == (min(expected, default=0), max(expected, default=0))
        middle = last // 2
        assert list(found.above(middle)) == [each for each in expected.items() if each[0] > middle]
        assert found.get(middle) == expected.get(middle)


def test_a_copy_takes_no_page_with_it() -> None:
    blobs = Blobs()
    for no in range(1, 4 << PAGE_BITS):
        blobs.add(no, b"")
    copy = blobs.copy()
    assert [*map(id, copy._pages.values())] == [*map(id, blobs._pages.values())]
    blobs.drop(1)
    blobs.drop(2)
    same = [at for at in copy._pages if copy._pages[at] is blobs._pages[at]]
    assert same == [1, 2, 3]
