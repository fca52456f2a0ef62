"""Receivers of sessions: they accept the next one or a named one, cancel waits, and store states.

Owns: what is done with sessions, by the world's random source; with their messages, see `receivers`. Must not
know: the broker's internals.
"""

from __future__ import annotations

from peeklock.testing.wire import WireState
from tests.simulation.actors.actors import ANSWER_MS_MAX, Shared
from tests.simulation.actors.messages import SESSIONS
from tests.simulation.actors.peer import ReceiveLink
from tests.simulation.actors.receivers import Held, Receiver
from tests.simulation.actors.requests import (
    get_state,
    list_sessions,
    peek,
    receive_deferred,
    renew_session,
    set_state,
    update_disposition,
)
from tests.simulation.oracle.history import Lock
from tests.simulation.oracle.holds import Accept
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.spellings import spelt


class SessionReceiver(Receiver):
    """Holds one session after the other."""

    def __init__(
        self, shared: Shared, name: str, queue: str, *, credit: int, lock_ms: int, delete: bool = False
    ) -> None:
        super().__init__(shared, name, queue, delete=delete, credit=credit)
        self._lock_ms = lock_ms
        self._accept: Accept | None = None
        self._keeps = False

    def _attach(self) -> None:
        assert self.peer is not None
        random = self.random
        wanted = random.choice((None, None, None, *SESSIONS))
        if wanted is not None:
            wanted = spelt(wanted, self.now_ms)
        wait_ms = random.choice((0, 300, 3_000, 20_000))
        self._accept = accept = self.checker.holds.asking(
            self.connection, self.address, wanted, wait_ms, self._lock_ms
        )
        self.world.note(f"{self.name} asks for session {wanted!r}, waits {wait_ms} ms")
        link = self.peer.attach_receiver(
            self.address, delete=self._delete, session=(wanted,), wait_ms=wait_ms
        )
        self._serve(link)
        link.on_attached = lambda: self._granted(link, accept)
        if wanted is None and random.random() < 0.3:
            self.later(random.choice((0, 1, 20, wait_ms // 2, wait_ms)), self._cancel, link)

    def _granted(self, link: ReceiveLink, accept: Accept) -> None:
        if self._link is not link:
            return
        self.world.note(f"{self.name} holds {link.session_id!r} until {link.locked_until_ms}")
        self._hold = self.checker.holds.granted(accept, link.session_id, link.locked_until_ms)
        self._keeps = self.random.random() < 0.4
        if self._keeps:
            self.later(self._lock_ms // 2, self._keep, link)
        self._flow(link)

    def _keep(self, link: ReceiveLink) -> None:
        """Renew the session's lock again and again."""
        if self._link is link and self._hold is not None and not self.stopped:
            renew_session(self, self.address, self._hold)
            self.later(self._lock_ms // 2, self._keep, link)

    def _cancel(self, link: ReceiveLink) -> None:
        """Stop waiting for a session; the answer may be in flight."""
        if self._link is link and not link.open:
            self.world.note(f"{self.name} waits no longer")
            self._leave_link(with_session=self.random.random() < 0.3)
            self.next_time(self.random.choice((0, 50, 1_000)), self._attach_again)

    def _attach_again(self) -> None:
        if self._link is None and not self.stopped:
            self._attach()

    def _leave_link(self, *, with_session: bool = False) -> None:
        if self._link is not None and self._accept is not None:
            self.checker.holds.left(self._accept, "detach")
        super()._leave_link(with_session=with_session)

    def _link_lost(self, link: ReceiveLink, condition: str | None) -> None:
        accept, hold = self._accept, self._hold
        if self._link is not link or accept is None:
            return
        self.world.note(f"{self.name} is left without session: {condition}")
        self._forget_link()
        if self.peer is None or self.peer.lost:
            return
        self.checker.link_lost(self.connection)
        if self.checker.may_refuse(condition, self.address):
            accept.refused = hold is None
            accept.over_ms = self.now_ms
            if hold is not None:
                hold.ends.append((self.now_ms, "update"))
        elif hold is not None:
            self.checker.holds.detached(accept, condition)
        elif not self.checker.excused(self.connection):
            self.checker.holds.refused(accept, condition)
        self.next_time(self.random.choice((0, 20, 700)), self._attach_again)

    def _decide(self, held: Held) -> None:
        if self.random.random() < 0.06:
            self._renew(held)
        else:
            super()._decide(held)

    def _renew(self, held: Held) -> None:
        # The lock of the session that the connection holds is renewed, not that of the message.
        if self._hold is not None and held.lock.hold is self._hold:
            renew_session(self, self.address, self._hold)
            self.later(self.random.randint(0, 3_000), self._settle, held, "complete")

    def _act(self) -> None:
        """Act on the session, the link or the connection now and then."""
        if self.stopped:
            return
        self.next_time(self.random.randint(50, 3_000), self._act)
        link, hold = self._link, self._hold
        if link is None:
            self._attach()
            return
        if not link.open or hold is None:
            self._check_wait()
            return
        assert self._accept is not None
        self.checker.holds.check_detached(self._accept)
        roll = self.random.random()
        if roll < 0.12:
            self.shared.uids += 1
            set_state(self, self.address, hold, self.shared.uids)
        elif roll < 0.16:
            set_state(self, self.address, hold, None)
        elif roll < 0.32:
            get_state(self, self.address, hold)
        elif roll < 0.4:
            list_sessions(self, self.address)
        elif roll < 0.55:
            self._fetch()
        elif roll < 0.62:
            self._drain(link)
        elif roll < 0.8:
            self._leave_link(with_session=roll >= 0.75)
            self.next_time(self.random.choice((0, 0, 500)), self._attach_again)
        elif roll < 0.84:
            self.leave()
        else:
            self._flow(link)

    def _check_wait(self) -> None:
        accept = self._accept
        assert self.wire is not None
        assert accept is not None
        late = self.now_ms - accept.asked_ms > accept.wait_ms + ANSWER_MS_MAX
        if late and self.wire.memory.state is WireState.OPEN and not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: an attach was not answered: {accept}")

    def _fetch(self) -> None:
        """Look for deferred messages of the session, and receive them under its lock."""
        hold = self._hold
        assert hold is not None

        def found(messages: list[tuple[int, int]]) -> None:
            numbers = [number for number, state in messages if state == 1][:2]
            if numbers and self._hold is hold:
                receive_deferred(
                    self, self.address, numbers, self.random.random() < 0.1, self._fetched, hold=hold
                )

        peek(
            self, self.address, 0, 50, lambda seen: found([(s.number, s.state) for s in seen]),
            session_id=hold.session_id,
        )  # fmt: skip

    def _fetched(self, lock: Lock) -> None:
        self.shared.locks.append((self.address, lock))
        kind = self.random.choice(("complete", "complete", "abandon", "dead-letter", "defer", "lapse"))
        if kind != "lapse":
            self.later(self.random.choice((0, 10, 1_000)), update_disposition, self, self.address, lock, kind)
