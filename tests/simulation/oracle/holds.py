"""Who holds which session, and in what order its messages come (G-01, G-02, G-04).

Owns: exclusivity and order of sessions as receivers see them. Must not know: how the broker assigns sessions.
The rules of order, for one receiver link that holds a session:

    no skipping   a message comes only once every active one before it in the session has come
    no repeating  one that came comes again only after it was given back
    back in place one that was given back comes before any that had not been given to its link by then

A lapse frees the session at that instant, and its link is detached later (C7): when its client uses the
session, when another one gets it, or 3 s after the lapse; never before, and over it nothing comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import COMMIT_MS_MAX, WIRE_MS_MAX, History, Hold, Lock
from tests.simulation.oracle.reasons import Reasons
from tests.simulation.oracle.records import MAIN, Record, Violation
from tests.simulation.oracle.spellings import session_of
from tests.simulation.world.clocks import FOREVER

SLACK_MS = WIRE_MS_MAX + COMMIT_MS_MAX

LINGER_MS = 3_000
"""From the lapse of a session's lock to the detach of its link (wire contract C40)."""

TURNS_MS_MAX = 1_000
"""The longest that something waits for its turn after its arrival."""

GIVEN_BACK = ("settle abandon", "settle release", "settle defer")


@dataclass(slots=True, eq=False)
class Accept:
    """A request for a session, granted or not."""

    connection: int
    name: str
    session_id: str | None
    """None = the next one that is available."""
    asked_ms: int
    wait_ms: int
    lock_ms: int
    hold: Hold | None = None
    over_ms: int = FOREVER
    """When its client left, or learnt that it is over."""
    refused: bool = False

    @property
    def session(self) -> str | None:
        """The session that it means, however it is spelt."""
        return None if self.session_id is None else session_of(self.session_id)

    def latest_end_ms(self, connection: int, wire_ms_max: int) -> int:
        """The latest instant at which it may have held a session, as another client on a connection must
        assume."""
        if self.refused:
            return 0
        by_itself = (
            self.hold.until_ms + (self.lock_ms if self.hold.renewals_open else 0)
            if self.hold is not None
            else self.asked_ms + self.wait_ms + self.lock_ms + SLACK_MS
        )
        # What was sent before on the same connection has arrived before.
        left = self.over_ms if connection == self.connection else self.over_ms + wire_ms_max
        return min(by_itself, left)


@dataclass(slots=True, eq=False)
class Doubt:
    """A session was refused without a known holder: one of the unanswered requests may hold it."""

    refused: Accept
    until_ms: int
    perhaps: list[Accept]


class Holds:
    """All holders of sessions."""

    def __init__(self, history: History, reasons: Reasons) -> None:
        self._history = history
        self._reasons = reasons
        self._accepts: list[Accept] = []
        self._doubts: list[Doubt] = []
        self._last_seen: dict[tuple[int, str], int] = {}
        """When a session was last seen with something in it."""

    # Accepting

    def asking(
        self, connection: int, name: str, session_id: str | None, wait_ms: int, lock_ms: int
    ) -> Accept:
        """Record that a client asks for a session."""
        accept = Accept(connection, name, session_id, self._history.now_ms(), wait_ms, lock_ms)
        self._accepts.append(accept)
        return accept

    def granted(self, accept: Accept, session_id: str | None, until_broker_ms: int) -> Hold:
        """Record that the broker has granted a session. Raises: Violation."""
        now = self._history.now_ms()
        if session_id is None or accept.session_id not in (None, session_id):
            raise Violation(f"asked for session {accept.session_id!r}, given {session_id!r}")
        history = self._history
        until_ms = history.passed_ms(accept.connection, until_broker_ms, accept.lock_ms, accept.asked_ms)
        queue_id = history.queue_id(accept.name, MAIN)
        hold = Hold(accept.connection, queue_id, until_ms - accept.lock_ms, until_ms, session_id, now)
        hold.ends += history.ends_since(hold)
        if hold.taken_ms < accept.asked_ms or hold.taken_ms > now:
            raise Violation(f"a session is held from a time before its request: {hold}")
        for other in history.holds:
            if (other.queue_id, other.session) != (queue_id, hold.session):
                continue
            first, second = (other, hold) if other.taken_ms <= hold.taken_ms else (hold, other)
            either = second.taken_ms == first.taken_ms and second.may_end_ms() <= first.taken_ms
            if second.taken_ms < first.may_end_ms() and not either:
                raise Violation(f"two links hold a session: {first} and {second}")
        history.facts.cursors.check_session_taken(queue_id, hold.session, hold.taken_ms)
        history.holds.append(hold)
        accept.hold = hold
        self._resolve(accept)
        return hold

    def refused(self, accept: Accept, condition: str | None) -> None:
        """Record that the broker granted no session. Raises: Violation, if it had no reason."""
        now = self._history.now_ms()
        accept.refused = True
        accept.over_ms = now
        self._resolve(accept)
        if condition == "com.microsoft:timeout":
            if accept.session_id is not None:
                raise Violation(f"a named session must not be waited for: {accept}")
            if now < accept.asked_ms + accept.wait_ms:
                raise Violation(f"refused with {condition} before the time: {accept}")
        elif condition == "com.microsoft:session-cannot-be-locked":
            queue_id = self._history.queue_id(accept.name, MAIN)
            cursors = self._history.facts.cursors
            if cursors.may_hold_session(queue_id, accept.session, accept.asked_ms):
                return
            holders = [] if accept.session_id is None else self._may_hold(accept)
            if not holders:
                raise Violation(f"refused with {condition}, though it is free: {accept}")
            if all(other.hold is None and other.over_ms == FOREVER for other in holders):
                self._doubts.append(Doubt(accept, now, holders))
        else:
            raise Violation(f"no session was given: {condition}, {accept}")

    def _resolve(self, accept: Accept) -> None:
        """Resolve the doubts whose suspects have an answer now, or will never have one."""
        for doubt in [doubt for doubt in self._doubts if accept in doubt.perhaps]:
            hold = accept.hold
            if hold is not None:
                justified = hold.session == doubt.refused.session and hold.taken_ms <= doubt.until_ms
            else:
                justified = not accept.refused
            doubt.perhaps.remove(accept)
            if justified:
                self._doubts.remove(doubt)
            elif not doubt.perhaps:
                raise Violation(f"refused, though it was free, as is known now: {doubt.refused}")

    def _may_hold(self, asked: Accept) -> list[Accept]:
        """Return the requests that may hold the session which another one did not get."""
        history = self._history
        holders: list[Accept] = []
        updates = [
            at
            for entity_id in history.facts.named(asked.name)
            for at, what in history.updates.get(entity_id, ())
            if what == "update"
        ]
        dropped = max([at for at in (*history.crashes, *updates) if at <= asked.asked_ms], default=0)
        for other in self._accepts:
            if other is asked or other.name != asked.name:
                continue
            wanted = other.session if other.hold is None else other.hold.session
            if wanted not in (None, asked.session):
                continue
            since_ms = other.asked_ms if other.hold is None else other.hold.taken_ms
            if since_ms < dropped and (other.hold is not None or self._crashed_after(other, asked)):
                continue
            if other.latest_end_ms(asked.connection, history.wire_ms_max) >= asked.asked_ms:
                holders.append(other)
        return holders

    def _crashed_after(self, other: Accept, asked: Accept) -> bool:
        return any(other.asked_ms < at <= asked.asked_ms for at in self._history.crashes)

    # The end of a hold

    def left(self, accept: Accept, how: str) -> None:
        """Record that the client leaves: it detaches, ends or closes, and its session is free at once (L-13).
        Or it stops waiting."""
        if accept.connection in self._history.lost:
            return  # the broker may never learn of it
        now = self._history.now_ms()
        accept.over_ms = min(accept.over_ms, now)
        if accept.hold is not None:
            accept.hold.ends.append((now, how))
        else:
            self._resolve(accept)

    def connection_lost(self, connection: int, how: str) -> None:
        """Record that the connection is over: cut or closed, its sessions are free; half open, that takes
        time."""
        if connection in self._history.lost:
            return  # half open before: the broker does not learn of it
        for accept in self._accepts:
            if accept.connection == connection and accept.over_ms == FOREVER:
                if how != "drop":
                    accept.over_ms = self._history.now_ms()
                if accept.hold is None:
                    self._resolve(accept)
                if how == "close" and accept.hold is not None:
                    accept.hold.ends.append((self._history.now_ms(), how))

    def detached(self, accept: Accept, condition: str | None) -> None:
        """Record that the broker has ended the link of a holder. Raises: Violation, if it had no reason."""
        now = self._history.now_ms()
        accept.over_ms = now
        hold = accept.hold
        assert hold is not None
        if condition == "com.microsoft:session-lock-lost":
            if hold.surely_live(now):
                raise Violation(f"detached with {condition}, yet the session is held: {hold}")
            if not (hold.ends or hold.renewals_open or self._may_be_detached(accept, hold, now)):
                raise Violation(f"detached with {condition} before the time, and for nothing: {hold}")
            hold.ends.append((now, "lost"))
        elif not self._history.excused(accept.connection):
            raise Violation(f"the broker detached a holder: {condition}, {hold}")

    def _may_be_detached(self, accept: Accept, hold: Hold, now_ms: int) -> bool:
        """Return whether the link of a session that has lapsed should be detached by now."""
        if now_ms >= hold.until_ms + LINGER_MS:
            return True
        under_way_ms = self._history.wire_ms_max + TURNS_MS_MAX
        links_ms = 2 * self._history.wire_ms_max  # a request waits for its links, and for credit on them
        if hold.used_ms + links_ms + under_way_ms >= hold.until_ms:
            return True
        for other in self._accepts:
            wanted = other.session if other.hold is None else other.hold.session
            if other is accept or other.name != accept.name or wanted not in (None, hold.session):
                continue
            if other.hold is not None and other.hold.taken_ms >= hold.until_ms:
                return True
            if other.hold is None and not other.refused and other.over_ms + under_way_ms >= hold.until_ms:
                return True  # it may have got the session, and does not know it yet
        return False

    def check_detached(self, accept: Accept) -> None:
        """Check the time while a client still has its link. Raises: Violation, if the link is left over."""
        hold, history = accept.hold, self._history
        assert hold is not None
        late_ms = history.now_ms() - hold.until_ms - LINGER_MS - SLACK_MS
        jumped = any(at + late_ms >= history.now_ms() for at in history.jumps)
        if late_ms > 0 and not (hold.renewals_open or jumped or history.excused(accept.connection)):
            raise Violation(f"the link of a lapsed session was not detached: {hold}")

    def using(self, hold: Hold) -> None:
        """Record a request that only a holder may make; it names the session, but no link."""
        for each in self.held_again(hold):
            each.used_ms = self._history.now_ms()

    def held_again(self, hold: Hold) -> list[Hold]:
        """Return all holds of a session by one connection, the latest last: requests name no link."""
        return [
            other
            for other in self._history.holds
            if (other.connection, other.queue_id, other.session)
            == (hold.connection, hold.queue_id, hold.session)
        ]

    def check_holder(self, hold: Hold, what: str, asked_ms: int) -> None:
        """Check that a request that only a holder may make succeeded for a connection that may have been the
        holder."""
        now = self._history.now_ms()
        if len(self.held_again(hold)) == 1 and not any(
            accept.connection == hold.connection and accept.hold is None and accept.asked_ms < now
            for accept in self._accepts
            if accept.session in (None, hold.session) and accept.asked_ms > hold.taken_ms
        ):
            self.check_held(hold, what, asked_ms)

    def check_held(self, hold: Hold, what: str, asked_ms: int) -> None:
        """Check that an action that only a holder may do succeeded for a connection that may have been the
        holder."""
        if asked_ms >= hold.until_ms and not hold.renewals_open:
            raise Violation(f"{what} at {asked_ms} succeeded on a lapsed session lock: {hold}")
        for at, kind in hold.ends:
            if kind in ("crash", "update") and hold.taken_ms < at < asked_ms:
                raise Violation(f"{what} at {asked_ms} succeeded on a session lock from before: {hold}")
            if kind == "detach" and at + self._history.wire_ms_max < asked_ms:
                raise Violation(f"{what} at {asked_ms} succeeded on a session that was left: {hold}")
            if kind == "cut" and at + SLACK_MS < asked_ms:
                raise Violation(f"{what} at {asked_ms} succeeded on a broken connection's session: {hold}")

    def check_end(self, hold: Hold, until_broker_ms: int) -> None:
        """Check that a message received by number shows until when its session is held (C4)."""
        held = self.held_again(hold)
        epoch = self._history.connections[hold.connection][1]
        shown = self._history.clocks.may_show(until_broker_ms, held[-1].until_ms, epoch)
        if any(each.renewals_open for each in held) or shown:
            return
        if len(held) == 1:
            raise Violation(f"a message received by number is locked until {until_broker_ms}: {hold}")

    def check_lost(self, hold: Hold, what: str) -> None:
        """Check that a refusal for a lost session lock has a reason."""
        if hold.surely_live(self._history.now_ms()):
            raise Violation(f"{what} was refused, yet the session is held: {hold}")

    # Deliveries

    def delivered(self, hold: Hold, lock: Lock, record: Record) -> None:
        """Check a message that has come over the link that holds a session. Raises: Violation."""
        facts = self._history.facts
        if record.session != hold.session:
            raise Violation(f"{hold} was given a message of another session: {record}")
        arrived_ms = min(c.opened_ms for r, c in facts.life(lock.uid).records if r.key() == record.key())
        lapsed = not hold.renewals_open and arrived_ms >= hold.until_ms
        if lapsed and len(self.held_again(hold)) == 1:
            raise Violation(f"{record} came over the link of a lapsed session: {hold}")
        earlier = hold.first.get(lock.number)
        if earlier is not None:
            if not any(what in GIVEN_BACK or what.startswith("enlist") for _, what in earlier.ends):
                raise Violation(f"a message came again that was not given back: {earlier}, {lock}")
            hold.returned.pop(lock.number, None)
            hold.first[lock.number] = lock
            return
        hold.first[lock.number] = lock
        now_ms = self._history.now_ms()
        latest_ms = self._history.clocks.latest_ms(now_ms - SLACK_MS, now_ms)
        for other in facts.live.values():
            if (other.queue_id, other.session) != (hold.queue_id, hold.session):
                continue
            if other.state is not MessageState.ACTIVE or other.position >= record.position:
                continue
            if self._reasons.expires_broker_ms(other, min) <= latest_ms:
                continue
            if other.sequence_number not in hold.first:
                raise Violation(f"{record} came before {other} of the same session: {hold}")
            if other.sequence_number in hold.returned:
                hold.returned[other.sequence_number] -= 1
                if hold.returned[other.sequence_number] < 0:
                    given = hold.first[other.sequence_number]
                    raise Violation(f"{record} came before {other}, which was given back: {given}")

    def giving_back(self, lock: Lock, under_way_max: int) -> None:
        """Record that a holder abandons or releases a message over its link, with at most so many in
        flight."""
        if lock.hold is not None and lock.hold.first.get(lock.number) is lock:
            lock.hold.returned[lock.number] = under_way_max

    def given_back(self, lock: Lock, done: bool) -> None:
        """Record the answer: without success nothing was given back."""
        if lock.hold is not None and lock.hold.first.get(lock.number) is lock and not done:
            lock.hold.returned.pop(lock.number, None)

    # The list of sessions

    def note_sessions(self, records: list[Record]) -> None:
        """Record what sessions had until now."""
        for record in records:
            if record.session is not None:
                self._last_seen[record.entity_id, record.session] = self._history.now_ms()

    def expected(self, entity_id: int) -> set[str]:
        """Return the sessions of an entity that have an active or deferred message, or a state."""
        return {
            record.session
            for record in self._history.facts.live.values()
            if record.entity_id == entity_id
            and record.session is not None
            and record.state is not MessageState.SCHEDULED
        }

    def listed(self, entity_id: int, asked_ms: int, before: set[str], found: list[str]) -> None:
        """Compare a list of sessions with those that existed when it was requested, and exist now."""
        now = self.expected(entity_id)
        listed = [session_of(session_id) for session_id in found]
        if len(set(listed)) != len(listed):
            raise Violation(f"a session is listed twice: {found}")
        if listed != sorted(listed):
            raise Violation(f"sessions are listed out of order: {found}")
        for session_id in listed:
            seen_ms = self._last_seen.get((entity_id, session_id), 0)
            if session_id not in now and session_id not in before and seen_ms < asked_ms:
                raise Violation(f"session {session_id!r} is listed, and has nothing: {found}")
        changed = {s for (e, s), at in self._last_seen.items() if e == entity_id and at >= asked_ms}
        for session_id in (before & now) - changed:
            if session_id not in listed:
                raise Violation(f"session {session_id!r} is not listed: {found}")
