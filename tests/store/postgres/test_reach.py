"""A database that is gone is told once, and once more when it is back."""

from __future__ import annotations

from peeklock.store.postgres.reach import GONE_S, Reach


def test_it_is_told_once_that_a_database_is_gone_and_back() -> None:
    now_s, told = [10.0], []
    reach = Reach(lambda: now_s[0])
    reach.tell = lambda reason, seconds: told.append((reason, seconds))
    reach.met()
    reach.missed("first")
    assert (told, reach.gone_s()) == ([], None)
    for _ in range(3):
        now_s[0] += GONE_S
        reach.missed("refused")
    assert (told, reach.gone_s()) == ([("refused", GONE_S)], 3 * GONE_S)
    reach.met()
    reach.met()
    assert (told[1:], reach.gone_s()) == ([(None, 3 * GONE_S)], None)


def test_a_connection_that_is_lost_alone_is_not_told() -> None:
    now_s, told = [10.0], []
    reach = Reach(lambda: now_s[0])
    reach.tell = lambda reason, seconds: told.append(reason)
    for _ in range(3):
        reach.missed("ended by the administrator")
        reach.met()
        now_s[0] += GONE_S
    assert told == []
