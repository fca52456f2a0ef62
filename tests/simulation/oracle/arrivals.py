"""Which message ids arrived where, and when: the promise of duplicate detection (D-01).

Owns: the window, as far as facts and clients show it. Must not know: digests. A message arrives at each
entity that numbers it: where it was sent, and on the way that it is forwarded. One that was dropped as a
duplicate at the end of its way leaves no record on the way, so it counts as a possible arrival at each entity
of the way. A scheduled message that is cancelled was never enqueued: its id is free again.
"""

from __future__ import annotations

from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import COMMIT_MS_MAX, WIRE_MS_MAX, DuplicateKey, History, Sent
from tests.simulation.oracle.records import Commit, Violation
from tests.simulation.oracle.routes import Routes


class Arrivals:
    """All arrivals that are known."""

    def __init__(self, history: History, routes: Routes) -> None:
        self._history = history
        self._routes = routes
        self._seen: dict[tuple[int, DuplicateKey], list[tuple[int, Commit]]] = {}
        self._by_id: dict[str, list[Sent]] = {}

    def sending(self, sent: Sent) -> None:
        if sent.message_id is not None:
            self._by_id.setdefault(sent.message_id, []).append(sent)

    def arrived(self, sent: Sent, entity_id: int, commit: Commit) -> None:
        """Record an arrival. Raises: Violation, if it was a duplicate."""
        description = self._history.facts.description(entity_id * 4)
        key = sent.duplicate_key(description)
        if key is None or not description.requires_duplicate_detection:
            return
        known = self._seen.setdefault((entity_id, key), [])
        for uid, first in known:
            # The first one counts from some time in its batch on, this one was let in at some time in its
            # own. No step of the clock changes that; a restart goes by the instant that was stored.
            lag_ms = commit.taken_ms - first.opened_ms
            if commit.clock.epoch != first.clock.epoch:
                lag_ms = commit.taken_ms + commit.clock.offset_ms - first.earliest_ms
            if lag_ms < description.duplicate_window_ms and uid != sent.uid and not self._freed(uid):
                raise Violation(
                    f"uid {sent.uid} is a duplicate of uid {uid}, {lag_ms} ms older, and was stored in"
                    f" {description.name}"
                )
        known.append((sent.uid, commit))

    def may_be_dropped(self, sent: Sent, names: list[str], at_ms: int) -> bool:
        """Return whether a message may be dropped as a duplicate in one of some entities, at a time or
        later."""
        return any(
            self._may_be_duplicate(sent, entity_id, at_ms)
            for name in names
            for entity_id in self._history.facts.named(name)
        )

    def names_from(self, name: str) -> list[str]:
        """Return an entity's name and those of all entities that its messages may be forwarded to."""
        return list(dict.fromkeys([name, *(d.name for d in self._routes.targets(name))]))

    def _may_be_duplicate(self, sent: Sent, entity_id: int, at_ms: int) -> bool:
        description = self._history.facts.description(entity_id * 4)
        key = sent.duplicate_key(description)
        if key is None or not description.requires_duplicate_detection:
            return False
        window_ms = description.duplicate_window_ms
        clocks = self._history.clocks
        if any(
            uid != sent.uid
            and clocks.may_last(first.clock.epoch, first.taken_ms, first.latest_ms, window_ms, at_ms)
            and not self._surely_freed(uid, at_ms)
            for uid, first in self._seen.get((entity_id, key), ())
        ):
            return True
        return any(
            self._may_have_passed(other, description.name)
            and self._may_still_be_known(other, window_ms, at_ms)
            for other in self._by_id[key[0]]
            if other is not sent and other.duplicate_key(description) == key
        )

    def _freed(self, uid: int) -> Commit | None:
        """Return the commit in which a message was cancelled, as far as facts and clients show it."""
        life = self._history.facts.life(uid)
        last = life.records[-1][0] if life.records else None
        if life.removed is None or last is None or last.state is not MessageState.SCHEDULED:
            return None
        name = self._history.facts.description(last.queue_id).name
        return life.removed if (name, last.sequence_number) in self._history.cancels else None

    def _surely_freed(self, uid: int, at_ms: int) -> bool:
        """Return whether a message was cancelled before a time, and not dropped behind a forward."""
        freed = self._freed(uid)
        if freed is None or len(self.names_from(self._history.sent[uid].queue)) > 1:
            return False
        return freed.taken_ms < at_ms

    def _may_have_passed(self, other: Sent, name: str) -> bool:
        """Return whether a message may have arrived at an entity without a trace."""
        facts = self._history.facts
        if other.outcome not in (None, "accepted", "dropped"):
            return False
        # A scheduled one has a record from where it waited, and may have been dropped behind.
        stored = other.scheduled_broker_ms is None and facts.life(other.uid).records
        if stored and not facts.has_topics:
            return False
        names = self.names_from(other.queue)
        if stored:
            # Of a topic's copies some may have left a trace, and others not.
            if not any(facts.is_topic(entity_id) for each in names for entity_id in facts.named(each)):
                return False
        return name in names and len(names) > 1

    def _may_still_be_known(self, other: Sent, window_ms: int, at_ms: int) -> bool:
        """Return whether the id of a message without a trace may still be known."""
        clocks = self._history.clocks
        came_ms = min(other.answered_ms, other.sent_ms + WIRE_MS_MAX + COMMIT_MS_MAX)
        instant_ms = clocks.latest_ms(other.sent_ms, came_ms)
        if other.scheduled_broker_ms is not None:
            came_ms = max(came_ms, clocks.last_at_ms(other.scheduled_broker_ms))
            instant_ms = max(instant_ms, other.scheduled_broker_ms)
        if at_ms <= came_ms + window_ms:
            return True
        return clocks.may_last(0, came_ms, instant_ms, window_ms, at_ms)
