"""The time of the event loop, shared among the connections that have sent something.

Theory of operation. A turn is one pass of the event loop over everything that is ready. A connection that has
read bytes works on them at once, as far as its class has time left in this turn. The rest waits in the queue
of its class, and the connection stops reading. The queues are served in rounds, first in, first out, each
entry for a quantum; an entry with more work goes to the end. So a connection that never stops sending is
always in the queue, and one that has just sent something passes it by. There are two classes: peers without a
valid claim share the smaller part, so that any number of strangers costs the clients a bounded part of each
turn.

Time bounds nothing within one step, so the work itself is also cut into small units (`Budget.units`).

Between two rounds the queues rest: until a batch is committed and handed out, else for a millisecond. Without
a rest the loop releases the interpreter lock often but briefly, and takes it back before another thread is
awake; since it does release it, CPython never forces a switch. A commit took 400 ms then, and batches grew
faster than their effects could be handed out.

Pure: the clock and the loop's functions come in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Budget:
    """The share of a class in one turn."""

    turn_s: float
    """For the whole class: once for those that have just sent, once more for a round of the queue."""
    quantum_s_min: float
    """Of a connection when many wait: with less, switching would take most of the time."""
    units: int
    """Of a connection, in `amqp.connection.FRAME_UNITS`: a message is 1, an attach 8, each 4 KiB 1."""


CLIENTS = Budget(turn_s=0.005, quantum_s_min=0.000_5, units=1024)
"""Our choice: with strangers and with what is handed out in the same turn, twice this stays under 20 ms.
1,024 messages of 1 KiB are more than a read holds."""

STRANGERS = Budget(turn_s=0.001_25, quantum_s_min=0.000_25, units=64)
"""Our choice: a fifth of a turn. 64 units are eight frames, about what a client sends until its claim."""

REST_S_MIN, REST_S_MAX = 0.001, 0.010
"""Between two rounds. Our choice: a switch of threads takes less than the first; with the second the queues
wait for a slow disk at most two thirds of the time."""

WINDOW_S = 10.0
"""The longest turn is of this window and of the one before. Our choice: a scrape every 10 s misses none."""


class Worker(Protocol):
    """A connection with work; hashable by identity."""

    @property
    def known(self) -> bool:
        """Whether its peer has shown a valid claim."""

    def work(self, units: int, until_s: float) -> bool:
        """Do so many units of work, or as many as fit until this time; return whether more waits."""

    def abort(self) -> None:
        """Close the connection at once."""


class Writer(Protocol):
    """A connection that writes at the end of a turn."""

    def end_turn(self) -> None:
        """Write what has accumulated."""

    def abort(self) -> None:
        """Close the connection at once."""


class _Share:
    """One class in one turn."""

    __slots__ = ("budget", "queue", "used_s")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used_s = 0.0
        self.queue: dict[Worker, None] = {}
        """Waiting workers, in the order of their turns."""


class Timer(Protocol):
    """Returned by the loop's `call_later`."""

    def cancel(self) -> None:
        """Do not call."""


class Turns:
    """Shares the turns of a loop."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Timer],
        *,
        on_defect: Callable[[Exception], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing to do.

        Args:
            call_soon: of the loop.
            call_later: of the loop.
            on_defect: takes what the work of a connection raised, after that connection was aborted.
            clock_s: never goes back.
        """
        self._call_soon = call_soon
        self._call_later = call_later
        self._on_defect = on_defect
        self.clock_s = clock_s
        self._strangers = _Share(STRANGERS)
        self._clients = _Share(CLIENTS)
        self._began_s: float | None = None
        """When this turn's first work began; None = there was none."""
        self._at_end: list[Callable[[], None]] = []
        self._writers: list[Writer] = []
        """Connections that write at the end of this turn."""
        self._serving = False
        self._busy = 0
        """Batches that are being committed or handed out."""
        self._handed_out_s = 0.0
        """Of the batch under way."""
        self._spent_s = 0.0
        """Time that the effects of the last batch take from clients in each turn and round."""
        self._round: Timer | None = None
        """The next round, while anything is queued."""
        self._longest_s = 0.0
        self._longest_before_s = 0.0
        self._window_ends_s = clock_s() + WINDOW_S

    def begin(self) -> None:
        """Note that work begins in this turn, which is measured until the next one."""
        if self._began_s is None:
            self._began_s = self.clock_s()
            self._call_soon(self._end)

    def at_end(self, call: Callable[[], None]) -> None:
        """Call a function at the end of this turn, after all that was ready."""
        if self._began_s is None:
            self.begin()
        self._at_end.append(call)

    def write_at_end(self, writer: Writer) -> None:
        """Have a connection write at the end of this turn, after the calls: with what a commit released."""
        if self._began_s is None:
            self.begin()
        self._writers.append(writer)

    def take(self, worker: Worker) -> None:
        """Have a connection work: now if its class has time left in this turn, else in the next rounds."""
        self.begin()
        if worker in self._clients.queue or worker in self._strangers.queue:
            return
        share = self._share_of(worker)
        budget = share.budget
        if self._serving:
            # A transport passes on what it has read: that is part of the same work.
            self._work(worker, budget.units, self.clock_s() + budget.quantum_s_min)
        elif share.used_s + budget.quantum_s_min > budget.turn_s:
            self._enqueue(worker)
        else:
            fair_s = max(budget.turn_s / (len(share.queue) + 1), budget.quantum_s_min)
            share.used_s += self._serve(worker, budget.units, min(fair_s, budget.turn_s - share.used_s))

    def plan(self, worker: Worker) -> None:
        """Have a connection work in one of the next rounds."""
        if worker not in self._clients.queue and worker not in self._strangers.queue:
            self._enqueue(worker)

    def batch_taken(self) -> None:
        """Note that a batch is being committed or handed out: the queues rest after the next round."""
        self._busy += 1
        self._handed_out_s = 0.0

    def batch_done(self) -> None:
        """Note that a batch is done: what is queued has a round."""
        self._busy -= 1
        excess_s = max(self._handed_out_s - CLIENTS.turn_s, 0.0)
        self._spent_s = min(excess_s, CLIENTS.turn_s - 2 * CLIENTS.quantum_s_min)
        if self._round is not None:
            self._round.cancel()
            self._round = self._call_later(0, self._serve_queues)

    def handed_out(self, seconds: float) -> None:
        """Note the time that effects took; the excess over a turn shortens the clients' turns for a batch."""
        self._handed_out_s += seconds

    @property
    def longest_turn_ms(self) -> int:
        """The longest turn of the last 10 to 20 s, from its first work to the start of the next one."""
        self._roll(self.clock_s())
        return round(max(self._longest_s, self._longest_before_s) * 1000)

    def _end(self) -> None:
        """Do what is left for the end of the turn, and begin a new one."""
        assert self._began_s is not None
        calls, self._at_end = self._at_end, []
        try:
            for call in calls:
                call()
        finally:
            writers, self._writers = self._writers, []
            for writer in writers:
                try:
                    writer.end_turn()
                except Exception as failure:
                    self._end_failed(writer, failure)
            now_s = self.clock_s()
            self._roll(now_s)
            self._longest_s = max(self._longest_s, now_s - self._began_s)
            self._began_s = None
            self._clients.used_s, self._strangers.used_s = self._spent_s, 0.0
            if self._at_end or self._writers:
                self.begin()

    def _enqueue(self, worker: Worker) -> None:
        self._share_of(worker).queue[worker] = None
        if self._round is None:
            self._round = self._call_later(0, self._serve_queues)

    def _serve_queues(self) -> None:
        """Serve a round: each entry once, as far as the time allows."""
        self.begin()
        if not self._busy:
            self._spent_s = 0.0
        for share, used_s in ((self._clients, self._spent_s), (self._strangers, 0.0)):
            budget = share.budget
            waiting = list(share.queue)
            for worker in waiting:
                left_s = budget.turn_s - used_s
                if left_s < budget.quantum_s_min:
                    break
                del share.queue[worker]
                fair_s = max(budget.turn_s / len(waiting), budget.quantum_s_min)
                used_s += self._serve(worker, budget.units, min(fair_s, left_s))
        if self._round is not None:
            self._round.cancel()  # one that was planned in between
        queued = self._clients.queue or self._strangers.queue
        rest_s = REST_S_MAX if self._busy else REST_S_MIN
        self._round = self._call_later(rest_s, self._serve_queues) if queued else None

    def _serve(self, worker: Worker, units: int, quantum_s: float) -> float:
        """Run a worker; return the seconds that it took."""
        started_s = self.clock_s()
        self._serving = True
        self._work(worker, units, started_s + quantum_s)
        self._serving = False
        return self.clock_s() - started_s

    def _work(self, worker: Worker, units: int, until_s: float) -> None:
        try:
            if worker.work(units, until_s):
                self._enqueue(worker)  # among the clients if it has shown a claim
        except Exception as failure:
            self._end_failed(worker, failure)

    def _end_failed(self, peer: Worker | Writer, failure: Exception) -> None:
        """Abort a connection that has failed; the others keep their turns."""
        peer.abort()
        if not isinstance(failure, OSError):  # its peer is gone: uvloop waits for `connection_lost` instead
            self._on_defect(failure)

    def _share_of(self, worker: Worker) -> _Share:
        return self._clients if worker.known else self._strangers

    def _roll(self, now_s: float) -> None:
        """Begin a new window if this one is over."""
        if now_s >= self._window_ends_s:
            quiet = now_s >= self._window_ends_s + WINDOW_S
            self._longest_before_s = 0.0 if quiet else self._longest_s
            self._longest_s = 0.0
            self._window_ends_s = now_s + WINDOW_S


class Batches:
    """Whether a batch of one namespace is being committed or handed out; tells the turns each change once."""

    __slots__ = ("_turns", "_under_way")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._under_way = False

    def taken(self) -> None:
        """Note that a batch begins to commit: the one before is done."""
        if self._under_way:
            self._turns.batch_done()
        self._under_way = True
        self._turns.batch_taken()

    def set_under_way(self, under_way: bool) -> None:
        """Note whether effects remain to be handed out."""
        if under_way != self._under_way:
            self._under_way = under_way
            (self._turns.batch_taken if under_way else self._turns.batch_done)()
