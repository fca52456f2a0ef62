"""A read for reclaim may come late: what it names must still be there."""

from __future__ import annotations

import pytest

from peeklock.engine import reclaim
from tests.engine.rig import Rig, at_once
from tests.engine.tiny import Create, Put, Take


def test_a_row_is_not_dropped_while_it_waits_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last message went after the read was asked for. Found by simulation. Req: R-06"""
    monkeypatch.setattr(reclaim, "DROP_ALONE_BYTES", 1)
    rig = Rig()
    rig.commit(Create())
    rig.commit(*(Put(b"%d" % n * 100) for n in range(4)))
    rig.settle()  # the rows of before the start are listed
    rig.commit(*(Take(position) for position in (1, 2, 3)))
    rig.now_ms += reclaim.SETTLE_MS + 1
    rig.engine.advance(rig.now_ms)
    wanted = rig.engine.reclaim_wanted(rig.now_ms)
    assert wanted is not None
    assert len(wanted.rows) == 1
    rig.commit(Take(4))
    rig.commit(Put(b"next"))
    rig.commit(Put(b"and next"))
    found = at_once(wanted.read_from(rig.store))
    rig.engine.reclaim_offer(found, rig.now_ms)
    rig.settle()
    assert wanted.rows[0] not in rig.store._bodies.numbers()


def test_a_body_that_somebody_waits_for_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its new row could be dropped, with its message, before the old one has been read: the connection
    would look in a missing row. Found by simulation. Req: R-06"""
    monkeypatch.setattr(reclaim, "DROP_ALONE_BYTES", 1)
    rig = Rig()
    rig.commit(Create())
    rig.commit(*(Put(b"%d" % n * 100) for n in range(4)))
    rig.settle()
    rig.commit(*(Take(position) for position in (1, 2, 3)))
    [message] = rig.messages()
    row = message.body_row
    rig.now_ms += reclaim.SETTLE_MS + 1
    rig.engine.advance(rig.now_ms)
    wanted = rig.engine.reclaim_wanted(rig.now_ms)
    assert wanted is not None
    assert wanted.rows == [row]
    rig.engine.bodies.want(row)
    rig.engine.reclaim_offer(at_once(wanted.read_from(rig.store)), rig.now_ms)
    rig.commit(Take(4))
    rig.commit(Put(b"next"))
    rig.commit(Put(b"and next"))
    assert message.body_row == row
    payloads = at_once(rig.store.read_body_rows([row]))[row]
    assert payloads[message.body_slot] == b"3" * 100
    rig.engine.bodies.put(row, payloads)
    rig.settle()
    assert row not in rig.store._bodies.numbers()
