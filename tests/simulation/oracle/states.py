"""The states of sessions: a read returns what was set, as of one register per session (G-03).

Owns: all writes of states and what may be read after them. Must not know: who holds a session. A write whose
answer was lost may have taken effect or not, until it is surely over.
"""

from __future__ import annotations

from tests.simulation.oracle.history import COMMIT_MS_MAX, WIRE_MS_MAX, History, StateWrite, Unit
from tests.simulation.oracle.records import Commit, Record, Violation

Session = tuple[int, str]
"""(entity id, session id)."""


class States:
    """The registers."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._writes: dict[Session, list[StateWrite]] = {}

    # Actions of clients

    def setting(self, session: Session, uid: int | None, unit: Unit | None = None) -> StateWrite:
        """Record a request to set a state, or with None to clear it; with `unit` in that transaction."""
        write = StateWrite(uid, self._history.now_ms(), unit=unit)
        self._writes.setdefault(session, []).append(write)
        return write

    def answered(self, session: Session, write: StateWrite, done: bool) -> None:
        """Check the answer. Raises: Violation, if the state is not on stable storage."""
        write.latest_ms = self._history.now_ms()
        write.done = done
        if not done:
            if write.uid is not None and self._history.facts.life(write.uid).records:
                raise Violation(f"the state uid {write.uid} was refused, yet stored")
            return
        if session[0] in self._history.facts.gone:
            return  # with its entity
        record = self._history.facts.states.get(session)
        self.read(session, write.latest_ms + 1, None if record is None else record.uid)

    def lost(self, write: StateWrite) -> None:
        """Record that the answer will not come."""
        write.latest_ms = self._history.now_ms() + WIRE_MS_MAX + COMMIT_MS_MAX

    def read(self, session: Session, asked_ms: int, uid: int | None) -> None:
        """Check a state that was read, by a request made at an instant. Raises: Violation, if it cannot have
        been it."""
        if uid is not None:
            self._history.require_own(uid)
        known = self._writes.get(session, [])
        possible = [write for write in known if write.done is not False and not write.is_held_back]
        writes = [StateWrite(None, 0, 0, True), *possible]
        over = [write for write in writes if write.done and write.latest_ms < asked_ms]
        for write in writes:
            if write.uid == uid and not any(write.latest_ms < later.asked_ms for later in over):
                return
        raise Violation(f"the state of {session} reads uid {uid}, of {writes[-5:]}")

    # What is durable

    def born(self, record: Record, commit: Commit) -> None:
        """Record a stored state. Raises: Violation, if no client set it."""
        assert record.session is not None
        facts = self._history.facts
        for entity_id in reversed(facts.named(facts.name(record.entity_id))):
            for write in self._writes.get((entity_id, record.session), ()):
                if write.uid == record.uid and write.done is not False:
                    if write.is_held_back:
                        raise Violation(
                            f"a state is stored, yet its transaction was not committed: {write.unit}"
                        )
                    if entity_id != record.entity_id:
                        # It was in flight while the entity was deleted and made again.
                        self._writes.setdefault((record.entity_id, record.session), []).append(write)
                    return
        raise Violation(f"a state that no client set, or that was refused: {record} in batch {commit.no}")

    def explain(self, record: Record, commit: Commit) -> str | None:
        """Return why a state may be gone."""
        assert record.session is not None
        writes = self._writes.get((record.entity_id, record.session), [])
        index = next(i for i, write in enumerate(writes) if write.uid == record.uid)
        # Another one that was requested earlier may have come later, from another connection.
        others = [write for i, write in enumerate(writes) if i != index and write.done is not False]
        if any(other.latest_ms >= writes[index].asked_ms for other in others):
            return f"replaced in batch {commit.no}"
        return None
