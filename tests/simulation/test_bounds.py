"""The checker itself: each bound on hostile peers, kept and passed, without a broker."""

from __future__ import annotations

import pytest

from peeklock.amqp.frames import EMPTY_FRAME, frame
from peeklock.amqp.performatives import encode_begin
from peeklock.gateway.bounds import STRANGER_LIMITS
from tests.simulation.oracle.bounds import HONEST_ROUNDS_MAX, Bounds, Guest
from tests.simulation.oracle.records import Violation
from tests.simulation.world.sizes import small_buffers

pytestmark = pytest.mark.simulation

STRANGER_FRAMES = 8
"""64 units, 8 for each frame."""


class Table:
    """The checker at an instant that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.buffers = small_buffers()
        self.bounds = Bounds(lambda: self.now_ms)
        self.bounds.started(self.buffers)

    def guest(self, name: str = "guest", *, known: bool = False, paired: bool = False) -> Guest:
        guest = Guest(name, known=known, paired=paired)
        self.bounds.came(guest)
        return guest

    def hold(self, guest: Guest, size: int) -> None:
        """Probe whether so many bytes are held; the broker answers."""
        guest.probes[7] = size
        self.bounds.answered(guest, frame(0, encode_begin(7, 0, 1, 1)))


def test_a_turn_answers_as_many_frames_as_its_class_may_send() -> None:
    table = Table()
    guest = table.guest(paired=True)
    table.bounds.arrived(guest)
    most = 2 * STRANGER_FRAMES + 1
    table.bounds.answered(guest, EMPTY_FRAME * most)
    table.now_ms = 1
    table.bounds.answered(guest, EMPTY_FRAME * (STRANGER_FRAMES + 1))
    with pytest.raises(Violation, match="answered in a turn"):
        table.bounds.answered(guest, EMPTY_FRAME)


def test_a_stranger_has_its_bytes_held_up_to_its_limit() -> None:
    table = Table()
    guest = table.guest()
    table.hold(guest, STRANGER_LIMITS.reassembly_bytes)
    with pytest.raises(Violation, match="held for it"):
        table.hold(guest, STRANGER_LIMITS.reassembly_bytes + 1)


def test_a_client_has_more_held() -> None:
    table = Table()
    guest = table.guest(known=True)
    table.hold(guest, table.buffers.connection_bytes_max)
    with pytest.raises(Violation, match="held for it"):
        table.hold(guest, table.buffers.connection_bytes_max + 1)


def test_strangers_together_have_no_more_held_than_their_budget() -> None:
    table = Table()
    first, second, third = (table.guest(str(number)) for number in range(3))
    table.hold(first, STRANGER_LIMITS.reassembly_bytes)
    table.hold(second, STRANGER_LIMITS.reassembly_bytes)
    with pytest.raises(Violation, match="held for strangers"):
        table.hold(third, 1)
    first.release()
    table.hold(third, 1)


def test_what_is_given_up_counts_no_more() -> None:
    """The answer to an earlier probe may come late."""
    table = Table()
    guest = table.guest()
    guest.probes[7] = STRANGER_LIMITS.reassembly_bytes + 1
    guest.release()
    table.bounds.answered(guest, frame(0, encode_begin(7, 0, 1, 1)))
    assert guest.held_bytes == 0


def test_with_the_last_hostile_peer_nothing_is_counted_for_strangers() -> None:
    table = Table()
    first, second = table.guest("first"), table.guest("second")
    table.buffers.strangers.used = 1
    table.bounds.gone(first)
    with pytest.raises(Violation, match="counted for strangers"):
        table.bounds.gone(second)


def test_in_the_end_all_have_left_and_nothing_is_counted() -> None:
    table = Table()
    table.bounds.finish()
    table.buffers.known.used = 1
    with pytest.raises(Violation, match="counted for clients"):
        table.bounds.finish()
    table.guest("late")
    with pytest.raises(Violation, match="not over"):
        table.bounds.finish()


def test_a_client_waits_for_its_turn_no_longer_than_its_bound() -> None:
    table = Table()
    table.bounds.worked(HONEST_ROUNDS_MAX)
    with pytest.raises(Violation, match="waited"):
        table.bounds.worked(HONEST_ROUNDS_MAX + 1)
