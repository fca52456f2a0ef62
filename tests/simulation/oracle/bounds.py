"""What a peer may make the broker do in a turn, and hold: checked from the bytes on its wire.

Owns: the bounds of hostile peers, and the promise to honest clients beside them. It sees what peers send,
what the broker answers and when connections are over; of the broker's own figures only that nothing is left
at the end. Must not know: gateways, turns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from peeklock.amqp.composites import BEGIN
from peeklock.amqp.connection import FRAME_UNITS
from peeklock.amqp.link import ReassemblyBudget
from peeklock.gateway.bounds import STRANGER_LIMITS, Buffers
from peeklock.server.loop.turns import CLIENTS, STRANGERS
from tests.amqp.pair import frames_of
from tests.simulation.oracle.records import Violation

HONEST_ROUNDS_MAX = 4
"""Rounds from the arrival of an honest client's bytes until all are worked on: two for a hello that is longer
than two shares of a stranger, and as many for peers that flood at the same time and precede it in the
queue."""


@dataclass(eq=False, slots=True)
class Guest:
    """One connection of a hostile peer."""

    name: str
    known: bool
    """It shows a valid claim before it floods or holds anything."""
    paired: bool = False
    """Each of its frames gets one answer at most."""
    probes: dict[int, int] = field(default_factory=dict)
    """Channel of a begin -> the bytes of unfinished deliveries that the broker holds once it answers it."""
    held_bytes: int = 0
    """Bytes of unfinished deliveries that the broker surely holds."""
    instant_ms: int = 0
    reads: int = 0
    answers: int = 0
    """Reads and frames of answers at this instant."""

    def release(self) -> None:
        """Record, before the peer sends it, that what is unfinished is given up."""
        self.probes.clear()
        self.held_bytes = 0


class Bounds:
    """The bounds of one process. Raises `Violation` when one is passed."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._guests: set[Guest] = set()
        """Peers whose connection the broker has."""
        self._buffers: Buffers | None = None
        self.counts = {"hostile": 0, "floods": 0, "probes": 0, "refused to hold": 0}

    def started(self, buffers: Buffers) -> None:
        """Record the start of a process with these budgets."""
        self._guests.clear()
        self._buffers = buffers

    def came(self, guest: Guest) -> None:
        """Record the connection of a hostile peer."""
        self._guests.add(guest)
        self.counts["hostile"] += 1

    def gone(self, guest: Guest) -> None:
        """Record that a connection is over: after the last one nothing is held for strangers any more."""
        self._guests.discard(guest)
        guest.release()
        assert self._buffers is not None
        if not self._guests and self._buffers.strangers.used:
            raise Violation(_leak("strangers", self._buffers.strangers))

    def finish(self) -> None:
        """Check that nothing is held: all hostile peers have left, and no client has half sent anything."""
        if self._guests:
            raise Violation(f"connections are not over: {sorted(guest.name for guest in self._guests)}")
        assert self._buffers is not None
        for who, budget in (("strangers", self._buffers.strangers), ("clients", self._buffers.known)):
            if budget.used:
                raise Violation(_leak(who, budget))

    # Turns

    def arrived(self, guest: Guest) -> None:
        """Record that bytes of a hostile peer were read."""
        self._at_this_instant(guest)
        guest.reads += 1

    def answered(self, guest: Guest, data: bytes) -> None:
        """Record what the broker writes to a hostile peer."""
        if guest.paired:
            self._count_answers(guest, data)
        if guest.probes:
            self._count_held(guest, data)

    def worked(self, rounds: int) -> None:
        """Record that an honest client's bytes are worked on, so many rounds after they came."""
        if rounds > HONEST_ROUNDS_MAX:
            raise Violation(f"a client's bytes waited for {rounds} rounds, {HONEST_ROUNDS_MAX} are the most")

    def _at_this_instant(self, guest: Guest) -> None:
        now_ms = self._now_ms()
        if guest.instant_ms != now_ms:
            guest.instant_ms = now_ms
            guest.reads = guest.answers = 0

    def _count_answers(self, guest: Guest, data: bytes) -> None:
        """Check that the frames of one turn stay within the units of their class.

        A peer works once for what waited, and once for each read that finds nothing waiting.
        """
        self._at_this_instant(guest)
        guest.answers += sum(1 for _ in _frames(data))
        budget = CLIENTS if guest.known else STRANGERS
        most = budget.units // FRAME_UNITS * (guest.reads + 1) + 1  # one: an empty frame, or a close
        if guest.answers > most:
            raise Violation(
                f"{guest.name}: {guest.answers} frames were answered in a turn, {most} are the most"
            )

    # Memory

    def _count_held(self, guest: Guest, data: bytes) -> None:
        for _, code, fields, _ in frames_of(data):
            if code == BEGIN and fields[0] in guest.probes:
                guest.held_bytes = guest.probes.pop(fields[0])
                self.counts["probes"] += 1
        buffers = self._buffers
        assert buffers is not None
        budget = buffers.known if guest.known else buffers.strangers
        one_max = buffers.connection_bytes_max if guest.known else STRANGER_LIMITS.reassembly_bytes
        held_bytes = sum(other.held_bytes for other in self._guests if other.known is guest.known)
        if guest.held_bytes > one_max:
            raise Violation(f"{guest.name}: {guest.held_bytes} bytes are held for it, {one_max} are the most")
        if held_bytes > budget.limit:
            who = "clients" if guest.known else "strangers"
            raise Violation(f"{held_bytes} bytes are held for {who}, {budget.limit} are the most")


def _leak(who: str, budget: ReassemblyBudget) -> str:
    return f"{budget.used} bytes are still counted for {who} that have left"


def _frames(data: bytes) -> Iterator[int]:
    """Return the positions at which frames begin."""
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            position += 8
            continue
        yield position
        position += struct.unpack_from(">I", data, position)[0]
