"""Which message ids arrived where, and when: what duplicate detection promises (D-01).

Owns: the window, as far as facts and clients tell of it. Must not know: digests. A message arrives at each
entity that numbers it: where it was sent, and on the way that it is forwarded. One that was dropped as a
duplicate at the end of such a way leaves no record of having passed, so that it counts as a possible arrival
wherever it may have been.
"""

from __future__ import annotations

from tests.simulation.history import COMMIT_MS_MAX, WIRE_MS_MAX, DuplicateKey, History, Sent
from tests.simulation.records import Commit, Violation
from tests.simulation.routes import Routes


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
        """Take notice of an arrival. Raises: Violation, if it was a duplicate."""
        description = self._history.facts.description(entity_id * 4)
        key = sent.duplicate_key(description.enable_partitioning)
        if key is None or not description.requires_duplicate_detection:
            return
        known = self._seen.setdefault((entity_id, key), [])
        for uid, first in known:
            # The first one counts from some instant in its batch on, this one was let in at some in its own.
            lag_ms = commit.taken_broker_ms - first.opened_broker_ms
            if 0 <= lag_ms < description.duplicate_window_ms and uid != sent.uid:
                raise Violation(
                    f"uid {sent.uid} is a duplicate of uid {uid}, {lag_ms} ms older, and was stored in"
                    f" {description.name}"
                )
        known.append((sent.uid, commit))

    def may_be_dropped(self, sent: Sent, names: list[str], at_broker_ms: int) -> bool:
        """Tell whether a message may be dropped as a duplicate in one of some entities, at an instant or
        later."""
        return any(
            self._may_be_duplicate(sent, entity_id, at_broker_ms)
            for name in names
            for entity_id in self._history.facts.named(name)
        )

    def names_from(self, name: str) -> list[str]:
        """Give an entity's name and those of all where its messages may be forwarded."""
        return list(dict.fromkeys([name, *(d.name for d in self._routes.targets(name))]))

    def _may_be_duplicate(self, sent: Sent, entity_id: int, at_broker_ms: int) -> bool:
        description = self._history.facts.description(entity_id * 4)
        key = sent.duplicate_key(description.enable_partitioning)
        if key is None or not description.requires_duplicate_detection:
            return False
        window_ms = description.duplicate_window_ms
        if any(
            uid != sent.uid and at_broker_ms <= first.taken_broker_ms + window_ms
            for uid, first in self._seen.get((entity_id, key), ())
        ):
            return True
        return any(
            self._may_have_passed(other, description.name)
            and at_broker_ms <= self._latest_broker_ms(other) + window_ms
            for other in self._by_id[key[0]]
            if other is not sent and other.duplicate_key(description.enable_partitioning) == key
        )

    def _may_have_passed(self, other: Sent, name: str) -> bool:
        """Tell whether a message may have arrived at an entity without leaving a trace."""
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

    def _latest_broker_ms(self, other: Sent) -> int:
        at_ms = min(other.answered_ms, other.sent_ms + WIRE_MS_MAX + COMMIT_MS_MAX)
        return max(at_ms, other.scheduled_broker_ms or 0) + self._history.offset_ms
