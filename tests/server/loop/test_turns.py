"""The time of the event loop, on a loop of the test's own whose clock moves by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peeklock.server.loop.turns import CLIENTS, REST_S_MAX, REST_S_MIN, STRANGERS, WINDOW_S, Turns

UNIT_S = 0.000_05


class Alarm:
    """What `call_later` returns."""

    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s, self.call = due_s, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Callbacks in turns, alarms, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ready: list[Callable[[], None]] = []
        self.alarms: list[Alarm] = []
        self.defects: list[Exception] = []
        self.turns = Turns(
            self.ready.append,
            self._call_later,
            on_defect=self.defects.append,
            clock_s=lambda: self.now_s,
        )

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(self.now_s + delay_s, call))
        return self.alarms[-1]

    @property
    def wakes_s(self) -> float | None:
        """When the next alarm is due."""
        return min((alarm.due_s for alarm in self.alarms if not alarm.cancelled), default=None)

    def turn(self) -> None:
        """Do what is ready and due."""
        ready, self.ready[:] = self.ready[:], []
        due = [alarm for alarm in self.alarms if alarm.due_s <= self.now_s]
        self.alarms = [alarm for alarm in self.alarms if alarm not in due]
        for call in ready:
            call()
        for alarm in due:
            if not alarm.cancelled:
                alarm.call()

    def round(self) -> None:
        """Rest until the next alarm, and serve it."""
        if self.wakes_s is not None:
            self.now_s = max(self.now_s, self.wakes_s)
        self.turn()

    def run(self) -> None:
        """Go on until nothing is left."""
        while self.ready or self.wakes_s is not None:
            self.round()


class Peer:
    """A connection with so many units of work; each takes `unit_s`."""

    def __init__(self, loop: Loop, units: int, *, known: bool = True, unit_s: float = UNIT_S) -> None:
        self.loop = loop
        self.units = units
        self.known = known
        self.unit_s = unit_s
        self.worked: list[int] = []
        """Units of each time that it had a turn."""
        self.aborted = False

    def work(self, units: int, until_s: float) -> bool:
        done = 0
        while self.units and done < units and (self.loop.now_s < until_s or not done):
            self.loop.now_s += self.unit_s
            self.units -= 1
            done += 1
        self.worked.append(done)
        return self.units > 0

    def abort(self) -> None:
        self.aborted = True


def test_a_connection_alone_works_at_once_up_to_its_units() -> None:
    """Req: T-08."""
    loop = Loop()
    quick = Peer(loop, 10)
    loop.turns.take(quick)
    assert quick.worked == [10]
    busy = Peer(loop, 3000, unit_s=1e-7)
    loop.turns.take(busy)
    assert busy.worked == [CLIENTS.units]
    loop.run()  # an idle loop is left alone
    assert busy.worked == [1024, 1024, 952]


def test_a_stranger_has_fewer_units() -> None:
    """Req: R-05."""
    loop = Loop()
    stranger = Peer(loop, 200, known=False, unit_s=1e-7)
    loop.turns.take(stranger)
    loop.run()
    assert stranger.worked == [STRANGERS.units] * 3 + [8]


@pytest.mark.parametrize("crowd", [1, 6, 300])
def test_strangers_leave_a_client_its_turns_however_many_they_are(crowd: int) -> None:
    """Req: R-05, T-08. Each of them never stops sending."""
    loop = Loop()
    strangers = [Peer(loop, 10**9, known=False) for _ in range(crowd)]
    for stranger in strangers:
        loop.turns.take(stranger)
    for _ in range(50):
        began_s = loop.now_s
        client = Peer(loop, 20)
        loop.turns.take(client)
        assert client.worked == [20]  # in the same turn
        loop.turn()
        assert loop.now_s - began_s <= STRANGERS.turn_s + 21 * UNIT_S
        loop.now_s += REST_S_MIN
    worked = [sum(stranger.worked) for stranger in strangers]
    assert max(worked) - min(worked) <= STRANGERS.units  # round robin


@pytest.mark.parametrize("crowd", [1, 6, 300])
def test_a_client_that_has_just_sent_passes_by_those_that_never_stop(crowd: int) -> None:
    """Req: T-08. In the next turn at the latest; those in the queue have their rounds all the same."""
    loop = Loop()
    crowded = [Peer(loop, 10**9) for _ in range(crowd)]
    for peer in crowded:
        loop.turns.take(peer)
    loop.turn()
    before = sum(sum(peer.worked) for peer in crowded)
    for _ in range(20):
        client = Peer(loop, 5)
        loop.turns.take(client)
        assert client.worked == [5]
        began_s = loop.now_s
        loop.round()
        assert loop.now_s - began_s <= REST_S_MIN + CLIENTS.turn_s + UNIT_S
    worked_s = (sum(sum(peer.worked) for peer in crowded) - before) * UNIT_S
    assert worked_s >= 20 * (CLIENTS.turn_s - CLIENTS.quantum_s_min)
    # Round robin: each has its quantum as often as any other; the first ones had more, at once.
    assert max(len(peer.worked) for peer in crowded) - min(len(peer.worked) for peer in crowded) <= 2


def test_what_comes_when_the_time_of_the_turn_is_used_up_waits_for_a_round() -> None:
    """Req: T-08."""
    loop = Loop()
    for _ in range(10):
        loop.turns.take(Peer(loop, 10**6))
    last = Peer(loop, 5)
    loop.turns.take(last)
    assert last.worked == []
    for _ in range(3):  # each entry has a quantum
        loop.round()
    assert last.worked == [5]


def test_the_queues_rest_until_the_batch_is_committed_and_handed_out() -> None:
    """Req: T-08. Else a commit waits for the interpreter lock as long as a peer floods us."""
    loop = Loop()
    peer = Peer(loop, 10**9)
    loop.turns.take(peer)
    loop.turn()
    assert len(peer.worked) == 2
    assert loop.wakes_s == pytest.approx(loop.now_s + REST_S_MIN)  # other threads have work too
    loop.turns.batch_taken()
    loop.round()  # what waits has one while it commits
    assert len(peer.worked) == 3
    assert loop.wakes_s == pytest.approx(loop.now_s + REST_S_MAX)
    loop.now_s += 0.002
    loop.turns.batch_done()
    assert loop.wakes_s == loop.now_s
    loop.turn()
    assert len(peer.worked) == 4


def test_a_batch_that_is_through_within_a_round_leads_to_one_round() -> None:
    """Req: T-08. Else the queues would have two at a time for as long as anything waits."""
    loop = Loop()

    class Committing(Peer):
        def work(self, units: int, until_s: float) -> bool:
            self.loop.turns.batch_taken()
            self.loop.turns.batch_done()
            return super().work(units, until_s)

    loop.turns.take(Committing(loop, 10**9))
    for _ in range(5):
        loop.round()
        assert len([alarm for alarm in loop.alarms if not alarm.cancelled]) == 1


def test_turns_are_shorter_by_what_a_batch_hands_out_beyond_a_turn_s_worth() -> None:
    """Req: T-08. A request of a few bytes may have an answer of thousands of messages."""
    loop = Loop()
    client, stranger = Peer(loop, 10**9), Peer(loop, 10**9, known=False)
    loop.turns.take(client)
    loop.turns.take(stranger)
    loop.turns.batch_taken()
    for handed_out_s, units in ((0.001, 100), (0.007, 60), (1.0, 20), (0.0, 100), (1.0, 20)):
        loop.turns.handed_out(handed_out_s / 2)
        loop.turns.handed_out(handed_out_s / 2)
        loop.turns.batch_done()
        loop.turns.batch_taken()
        loop.round()
        expected: Any = (pytest.approx(units, abs=1), 25)
        assert (client.worked[-1], stranger.worked[-1]) == expected
        another = Peer(loop, 10**6)
        loop.turn()
        loop.turns.take(another)
        assert another.worked == [pytest.approx(min(units, 50), abs=1)]  # half a turn at most: one waits
        another.units = 0
        loop.round()
        loop.round()  # it is gone from the queue
    loop.turns.batch_done()
    loop.round()
    assert client.worked[-1] == pytest.approx(100, abs=1)  # no batch: nothing to make up for


def test_who_shows_a_claim_goes_on_among_the_clients() -> None:
    loop = Loop()
    stranger = Peer(loop, 3000, known=False, unit_s=1e-7)
    loop.turns.take(stranger)
    loop.round()
    stranger.known = True
    loop.round()
    loop.round()
    assert stranger.worked == [64, 64, 64, 1024]


def test_one_that_waits_already_is_not_taken_twice() -> None:
    loop = Loop()
    peer = Peer(loop, 3000, known=False, unit_s=1e-7)
    loop.turns.take(peer)
    loop.turns.take(peer)  # its socket has been read once more
    peer.known = True
    loop.turns.take(peer)
    loop.turn()
    assert peer.worked == [64, 64]


def test_what_a_transport_hands_on_is_part_of_its_work() -> None:
    """A WebSocket hands on what its frames carry: the time is counted once."""
    loop = Loop()
    carried = Peer(loop, 30)

    class WebSocket(Peer):
        def work(self, units: int, until_s: float) -> bool:
            super().work(units, until_s)
            self.loop.turns.take(carried)
            return False

    loop.turns.take(WebSocket(loop, 10))
    assert carried.worked == [10]  # a quantum
    loop.round()
    assert carried.worked == [10, 20]


def test_a_defect_ends_the_connection_that_met_it_and_no_other() -> None:
    """Req: R-05."""
    loop = Loop()

    class Bad(Peer):
        def work(self, units: int, until_s: float) -> bool:
            if self.worked:
                raise ZeroDivisionError
            return super().work(units, until_s)

    bad, good = Bad(loop, 10**6), Peer(loop, 3000, unit_s=1e-7)
    loop.turns.take(bad)
    loop.turns.take(good)
    loop.run()
    assert bad.aborted
    assert [type(defect) for defect in loop.defects] == [ZeroDivisionError]
    assert good.units == 0


def test_a_peer_that_is_gone_is_no_defect() -> None:
    """asyncio raises it from the end of our half of the stream; uvloop does not."""
    loop = Loop()

    class Gone(Peer):
        def work(self, units: int, until_s: float) -> bool:
            raise OSError(107, "Transport endpoint is not connected")

    gone = Gone(loop, 1)
    loop.turns.take(gone)
    assert gone.aborted
    assert loop.defects == []


def test_the_longest_turn_is_of_this_window_and_the_one_before() -> None:
    loop = Loop()
    for length_s in (0.004, 0.030, 0.002):
        loop.turns.begin()
        loop.now_s += length_s
        loop.turn()
        loop.now_s += 1  # idle time is no turn
    assert loop.turns.longest_turn_ms == 30
    loop.now_s += WINDOW_S
    assert loop.turns.longest_turn_ms == 30
    loop.now_s += WINDOW_S
    assert loop.turns.longest_turn_ms == 0


def test_what_is_left_for_the_end_of_a_turn_is_done_behind_all_that_was_ready() -> None:
    """And counts in it."""
    loop = Loop()
    done: list[str] = []

    def commit() -> None:
        done.append("commit")
        loop.now_s += 0.25

    loop.turns.take(Peer(loop, 1))
    loop.turns.at_end(commit)
    loop.turns.take(Peer(loop, 1))
    assert not done
    loop.turn()
    assert done == ["commit"]
    assert loop.turns.longest_turn_ms == 250
    loop.run()
    assert done == ["commit"]


def test_what_the_end_of_a_turn_leaves_is_done_at_the_end_of_the_next() -> None:
    loop = Loop()
    done: list[int] = []

    def go_on() -> None:
        done.append(len(done))
        if len(done) < 3:
            loop.turns.at_end(go_on)

    loop.turns.at_end(go_on)
    for count in (1, 2, 3, 3):
        loop.turn()
        assert len(done) == count
    assert not loop.ready
