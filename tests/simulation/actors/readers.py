"""Readers of a queue by claims, as a pipeline reads: claim, read, commit, and at times start again, also
under a new name (X-06).

Owns: what a reader asks, and which answers are right. A reader remembers its claims over lost connections and
the broker's deaths, and reads them again: they must be the same. Must not know: the broker's internals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Int, Long
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.requests import read_delivery, refused
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.cursors import CursorFacts
from tests.simulation.oracle.records import Violation

CLAIM_COMMITTED = (410, "peeklock:claim-committed")
CLAIM_NOT_FOUND = (404, "peeklock:claim-not-found")
CURSOR_NOT_FOUND = (404, "peeklock:cursor-not-found")
CURSOR_OWNED = (409, "peeklock:cursor-owned")
FULL = (403, "amqp:resource-limit-exceeded")


class Reader(Actor):
    """Reads one queue or dead-letter queue under one name."""

    def __init__(self, shared: Shared, name: str, address: str, cursor: str) -> None:
        super().__init__(shared, name)
        self._address = address
        self._cursor = cursor
        self._lives = 0
        """How often it has lost its name: it has none at first, as a reader of an older release."""
        self._must_take = False
        self._known: dict[int, list[int]] = {}
        """By queue: claims that it knows of and has not committed. The entity may be another one of the same
        name."""

    @property
    def _facts(self) -> CursorFacts:
        return self.checker.facts.cursors

    @property
    def _queue_id(self) -> int:
        return self.checker.history.queue_id(*split(self._address))

    @property
    def _owner(self) -> str | None:
        return f"{self.name}-{self._lives}" if self._lives else None

    @property
    def _named(self) -> dict[str, Any]:
        named = {"cursor": self._cursor}
        return named if self._owner is None else {**named, "owner": self._owner}

    def ready(self) -> None:
        self.next_time(self.random.randint(0, 500), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        self.next_time(self.random.randint(20, 600), self._act)
        known = self._known.setdefault(self._queue_id, [])
        roll = self.random.random()
        if self._must_take:
            self._take(take_over=roll < 0.5)
        elif roll < 0.35 or not known:
            self._claim()
        elif roll < 0.65:
            self._read(self.random.choice(known))
        elif roll < 0.88:
            self._commit(self.random.choice(known))
        elif roll < 0.90:
            self._lose_name()
        elif roll < 0.92:
            self._list()
        elif roll < 0.96:
            self.release(self._cursor)
        else:
            if roll < 0.98:
                self._lose_name()
            self.leave()

    def _lose_name(self) -> None:
        """Go on as another reader, as a query whose checkpoint is lost."""
        self._lives += 1
        self._must_take = True

    def _take(self, *, take_over: bool) -> None:
        queue_id, cursor, owner = self._queue_id, self._cursor, self._owner
        asked = self._facts.asked(queue_id, cursor)
        asked.takes += 1
        asked.take_overs += take_over
        releases = asked.releases

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            stored = self._facts.cursors.get((queue_id, cursor))
            if answer == CURSOR_OWNED:
                return not take_over
            if answer != (200, None):
                return answer[1] == "com.microsoft:server-busy" and releases > 0
            [own] = found["cursors"]
            if owner != self._owner:
                return True  # it has lost that name since
            if asked.releases == releases and (
                stored is None or stored.owner != owner or own["owner"] != owner
            ):
                raise Violation(f"{self.name}: it took its cursor, and stable storage has {stored}")
            self._must_take = False
            self._known[queue_id] = [no for no, _, _ in own["claims"]]
            if self._lives % 3 == 1:
                # Spark claims before its log has the offset: a query that dies between leaves claims unread.
                self._claim(reads=False)
                self._lose_name()
            elif self._lives % 3 == 2:
                self._act_as_before(f"{self.name}-{self._lives - 1}")
            return True

        self._ask("take", {"cursor": cursor, "owner": owner, "take-over": take_over}, answered)

    def _is_owned(self, answer: tuple[int, str | None], queue_id: int, owner: str | None, takes: int) -> bool:
        """Return whether a reader was refused, with reason, because it is not the owner any more."""
        if answer != CURSOR_OWNED:
            return False
        stored = self._facts.cursors.get((queue_id, self._cursor))
        if (
            stored is not None
            and stored.owner == owner
            and takes == self._facts.asked(queue_id, self._cursor).takes
        ):
            raise Violation(f"{self.name}: the owner was refused: {stored}")
        self._known[queue_id] = []
        return True

    def _ask(
        self,
        operation: str,
        body: dict[str, Any],
        answered: Callable[[tuple[int, str | None], dict[str, Any]], bool],
    ) -> None:
        """Ask something; `answered` returns whether the answer is right. An entity that is gone, or another
        one of its name, excuses any answer."""
        assert self.peer is not None
        queue_id = self._queue_id

        def take(status: int, condition: str | None, found: Any) -> None:
            if status == 0:
                return
            self.world.note(f"{self.name}: {operation} {body} {status} {condition} {_short(found)}")
            if queue_id != self._queue_id or not self.checker.exists(split(self._address)[0]):
                return
            answer = (status, None if condition is None else str(condition))
            if not answered(answer, found) and not refused(self, self._address, operation, condition):
                raise Violation(f"{self.name}: {operation} {body} was answered {answer} {_short(found)}")

        self.peer.ask(self._address, f"peeklock:cursor-{operation}", body, take)

    def _act_as_before(self, owner: str) -> None:
        """Claim under a name that was lost, as a query that goes on beside the one that replaced it."""
        queue_id, cursor = self._queue_id, self._cursor
        gone = self._facts.gone.get((queue_id, cursor), 0)
        releases = self._facts.asked(queue_id, cursor).releases

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            asked = self._facts.asked(queue_id, cursor)
            if asked.releases > releases or self._facts.gone.get((queue_id, cursor), 0) != gone:
                return True  # the cursor is another one, which has no owner yet
            return answer == CURSOR_OWNED

        body = {"cursor": cursor, "owner": owner, "max-messages": Int(1), "max-bytes": Long(10**9)}
        self._ask("claim", body, answered)

    def _claim(self, *, reads: bool = True) -> None:
        count = self.random.choice((1, 2, 5, 12))
        queue_id, cursor = self._queue_id, self._cursor
        asked, owner = self._facts.asked(queue_id, cursor), self._owner
        ends, takes = asked.ends, asked.takes

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            if self._is_owned(answer, queue_id, owner, takes):
                return True
            if answer != (200, None):
                return answer[1] == "com.microsoft:server-busy" and ends > 0
            no = found["claim"]
            if not no:
                return not found["count"]
            claim = self._facts.made.get((queue_id, cursor, no))
            if claim is None or (
                asked.ends == ends
                and (len(claim.records) != found["count"] or not 0 < found["count"] <= count)
            ):
                raise Violation(f"{self.name}: claim {no} of {found['count']} is not on stable storage")
            known = self._known.setdefault(queue_id, [])
            if no not in known:
                known.append(no)
            if self.random.random() < 0.8 and reads:
                self._read(no)
            return True

        body = {
            **self._named,
            "max-messages": Int(count),
            "max-bytes": Long(self.random.choice((200, 10**9))),
        }
        self._ask("claim", body, answered)

    def _read(self, no: int, skip: int = 0) -> None:
        queue_id, cursor = self._queue_id, self._cursor
        asked = self._facts.asked(queue_id, cursor)
        gone = self._facts.gone.get((queue_id, cursor), 0)
        claim = self._facts.made.get((queue_id, cursor, no))
        count = self.random.choice((1, 3, 100))
        takes, owner = asked.takes, self._owner

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            if self._is_owned(answer, queue_id, owner, takes):
                return True
            known = self._known[queue_id]
            if answer == CLAIM_COMMITTED and asked.commit_no >= no:
                known[:] = [other for other in known if other > no]
                return True
            if answer in (CLAIM_NOT_FOUND, CURSOR_NOT_FOUND) and asked.ends:
                known.clear()
                return True
            made_again = self._facts.made.get((queue_id, cursor, no)) is not claim
            if answer[1] is not None or made_again or self._facts.gone.get((queue_id, cursor), 0) != gone:
                return answer[1] is None
            assert claim is not None
            shown = found["messages"] if answer[0] == 200 else []
            self._compare(no, [entry["message"] for entry in shown], claim.records[skip : skip + count])
            if shown and skip + len(shown) < len(claim.records):
                self._read(no, skip + len(shown))
            return True

        limits = {"max-messages": Int(count), "max-bytes": Long(self.random.choice((1, 10**9)))}
        self._ask("read", {**self._named, "claim": Long(no), "skip": Int(skip), **limits}, answered)

    def _compare(self, no: int, shown: list[bytes], records: list[Any]) -> None:
        """Check that a claim shows what it holds, or the first part of it."""
        seen = [read_delivery(payload) for payload in shown]
        told = [(each.uid, each.number, each.count) for each in seen]
        expected = [(record.body_uid, record.sequence_number, record.delivery_count) for record in records]
        if told != expected[: len(told)] or bool(told) != bool(expected):
            raise Violation(f"{self.name}: claim {no} shows {told}, and holds {expected}")
        for payload in shown:
            annotations = scan(payload).decode_message_annotations()
            if annotations.get("x-opt-peeklock-cursor") != self._cursor:
                raise Violation(f"{self.name}: claim {no} shows a message of another cursor: {annotations}")

    def _commit(self, no: int) -> None:
        queue_id, cursor = self._queue_id, self._cursor
        asked = self._facts.asked(queue_id, cursor)
        asked.commit_no = max(asked.commit_no, no)
        gone = self._facts.gone.get((queue_id, cursor), 0)
        takes, owner = asked.takes, self._owner

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            if self._is_owned(answer, queue_id, owner, takes):
                return True
            if answer in (CLAIM_NOT_FOUND, CURSOR_NOT_FOUND):
                return asked.ends > 0
            if answer != (200, None):
                return False
            known = self._known[queue_id]
            known[:] = [other for other in known if other > no]
            if self._facts.gone.get((queue_id, cursor), 0) != gone:
                return True  # another cursor may have had the name
            stored = self._facts.cursors.get((queue_id, cursor))
            if stored is None or stored.committed_no < no:
                raise Violation(f"{self.name}: a commit of {no} is not on stable storage: {stored}")
            left = [
                key
                for key, claim in self._facts.held.items()
                if (claim.fact.queue_id, claim.fact.cursor) == (queue_id, cursor) and claim.fact.no <= no
            ]
            if len(left) > found["left"]:
                raise Violation(f"{self.name}: {found['left']} left of claim {no}, and there are {left}")
            if found["left"] and self.random.random() < 0.5:
                self._commit(no)
            return True

        self._ask("commit", {**self._named, "claim": Long(no)}, answered)

    def _list(self) -> None:
        queue_id, cursor = self._queue_id, self._cursor
        committed = self._facts.cursors.get((queue_id, cursor))

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            if answer != (200, None):
                return False
            names = [each["cursor"] for each in found["cursors"]]
            if names != sorted(set(names)):
                raise Violation(f"{self.name}: cursors are not listed in order: {names}")
            if cursor in names:
                [own] = [each for each in found["cursors"] if each["cursor"] == cursor]
                known = self._known.setdefault(queue_id, [])
                # Also claims whose answer was lost.
                known += [no for no, _, _ in own["claims"] if no not in known]
            elif committed is not None and not self._facts.asked(queue_id, cursor).releases:
                raise Violation(f"{self.name}: its cursor is not listed: {names}")
            return True

        self._ask("list", {}, answered)

    def release(self, cursor: str) -> None:
        """Release a cursor, its own or another's."""
        queue_id = self._queue_id
        self._facts.asked(queue_id, cursor).releases += 1
        gone = self._facts.gone.get((queue_id, cursor), 0)
        was_there = (queue_id, cursor) in self._facts.cursors

        def answered(answer: tuple[int, str | None], found: dict[str, Any]) -> bool:
            if answer == CURSOR_NOT_FOUND:
                return True
            if answer != (200, None):
                return False
            self._known.setdefault(queue_id, []).clear()
            if found["left"] or (was_there and self._facts.gone.get((queue_id, cursor), 0) == gone):
                raise Violation(f"{self.name}: a release of '{cursor}' is not on stable storage: {found}")
            return True

        self._ask("release", {"cursor": cursor}, answered)


class Releaser(Reader):
    """Releases all cursors of one queue once the faults are over."""

    def __init__(self, shared: Shared, address: str) -> None:
        super().__init__(shared, f"releaser-{address}", address, "")

    def ready(self) -> None:
        for queue_id, cursor in list(self._facts.cursors):
            if queue_id == self._queue_id:
                self.release(cursor)
        self.later(500, self.ready)


def _short(found: Any) -> str:
    messages = found.get("messages") if isinstance(found, dict) else None
    return str(found) if messages is None else f"{len(messages)} messages"
