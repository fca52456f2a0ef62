"""What became of messages to a topic, and what must therefore be in its subscriptions (P-01, R-02).

Owns: which copies a message has, worked out from its uid alone, and the promises about them. Must not know:
sockets or processes; how the broker evaluates rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.kill.ledger import Broken, Ledger

TOPIC = "news"
SINK = "sink"
"""The queue that a subscription forwards to."""

COLORS = ("red", "blue", "green")
SIZES = (0, 100, 1000, 4000)
LARGE = 1000

Subscriptions = Mapping[str, Mapping[str, tuple[str, str | None]]]
RULES: Subscriptions = {
    "all": {"$Default": ("1 = 1", None)},
    "plain": {"red": ("color = 'red'", None), "large": (f"size > {LARGE}", None)},
    "acted": {
        "red": ("color = 'red'", "SET seen = n + 1"),
        "cool": ("color IN ('blue', 'green')", "REMOVE color; SET sys.Label = 'cool'"),
        "large": (f"size > {LARGE}", None),
    },
    "strict": {"divide": ("70 / n >= 10", None)},
    "passed": {"green": ("color = 'green'", None)},
}
"""Filter and action of each rule of each subscription."""


def path(subscription: str) -> str:
    """Return a subscription's address."""
    return f"{TOPIC}/Subscriptions/{subscription}"


GRAVES = f"{path('strict')}/$DeadLetterQueue"
PLACES = (*(path(name) for name in RULES if name != "passed"), GRAVES, SINK)
"""Where copies are received."""

COUNTED_TOGETHER = ((path("all"),), (path("plain"),), (path("acted"),), (path("strict"), GRAVES), (SINK,))
"""What has its own sequence numbers."""


def properties_of(uid: int) -> dict[str, Any]:
    """Return the application properties of a message."""
    return {"color": COLORS[uid % 3], "n": uid % 7, "size": SIZES[uid % 4]}


def is_scheduled(uid: int) -> bool:
    """Return whether a message is scheduled for a little later."""
    return uid % 8 == 5


def copies_of(uid: int) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Return the copies that a message must have, by place and name of the rule whose action made it; with
    their application properties, and the label as `Label`."""
    sent = properties_of(uid)
    is_red, is_large = sent["color"] == "red", sent["size"] > LARGE
    copies: dict[tuple[str, str | None], dict[str, Any]] = {(path("all"), None): sent}
    if is_red or is_large:
        copies[path("plain"), None] = sent
    if is_large:
        copies[path("acted"), None] = sent
    if is_red:
        copies[path("acted"), "red"] = {**sent, "seen": sent["n"] + 1}
    else:
        copies[path("acted"), "cool"] = {"n": sent["n"], "size": sent["size"], "Label": "cool"}
    if sent["n"] == 0:
        copies[GRAVES, None] = sent
    else:
        copies[path("strict"), None] = sent  # 70 / 6 is 11
    if sent["color"] == "green":
        copies[SINK, None] = sent
    return copies


@dataclass(slots=True)
class Copy:
    """What is known of one copy."""

    uid: int
    place: str
    rule: str | None
    number: int
    seen: int = 0
    completing: bool = False
    completed: bool = False


class Copies:
    """All copies of the messages of one run, over any number of broker processes."""

    def __init__(self, sends: Ledger) -> None:
        """Begin without copies; `sends` knows what was sent, and its outcomes."""
        self._sends = sends
        self._copies: dict[tuple[int, str, str | None], Copy] = {}
        self._by_number: dict[tuple[str, int], Copy] = {}
        self._topic_numbers: dict[int, int] = {}
        """By uid."""

    def delivered(
        self, uid: int, place: str, rule: str | None, numbers: tuple[int, int], properties: dict[str, Any]
    ) -> Copy:
        """Check a copy that a receiver got; return it.

        Args:
            numbers: the sequence number, and the topic's.
            properties: as of `copies_of`.
        """
        fate = self._sends.fates.get(uid)
        if fate is None or fate.rejected is not None:
            raise Broken(f"not sent or refused, yet in {place}: uid {uid}, {fate}")
        fate.seen += 1
        number, topic_number = numbers
        expected = copies_of(uid).get((place, rule))
        if expected is None:
            raise Broken(f"no rule chose it, yet in {place} by rule {rule}: uid {uid}, {properties_of(uid)}")
        if properties != expected:
            raise Broken(f"in {place} by rule {rule}: uid {uid} has {properties}, not {expected}")
        copy = self._copies.setdefault((uid, place, rule), Copy(uid, place, rule, number))
        if copy.completed:
            raise Broken(f"came back after its completion was acknowledged: {copy}")
        if copy.number != number:
            raise Broken(f"a second time, as number {number}: {copy}")
        if self._by_number.setdefault((place, number), copy) is not copy:
            raise Broken(f"{copy} has the number of {self._by_number[place, number]}")
        if self._topic_numbers.setdefault(uid, topic_number) != topic_number:
            raise Broken(f"numbers {topic_number} and {self._topic_numbers[uid]} of the topic: {copy}")
        copy.seen += 1
        return copy

    def completing(self, copy: Copy) -> None:
        """Record that a receiver sends its completion."""
        copy.completing = True

    def completed(self, copy: Copy) -> None:
        """Record that its completion was acknowledged."""
        if copy.completed:
            raise Broken(f"two completions were acknowledged: {copy}")
        copy.completed = True

    def is_waiting(self) -> bool:
        """Whether an accepted message has not been seen anywhere: it may not be due yet."""
        return any(fate.accepted and not fate.seen for fate in self._sends.fates.values())

    def finish(self) -> dict[str, int]:
        """Check everything, once every copy that was left has been received and completed. Raises: Broken."""
        seen: dict[int, set[tuple[str, str | None]]] = {}
        for copy in self._copies.values():
            seen.setdefault(copy.uid, set()).add((copy.place, copy.rule))
        fates = self._sends.fates.values()
        for fate in fates:
            found, expected = seen.get(fate.uid, set()), copies_of(fate.uid).keys()
            if found != expected and (found or fate.accepted):
                raise Broken(f"has {found}, and its rules chose {set(expected)}: {fate}")
        groups: dict[int, set[bool]] = {}
        for fate in fates:
            if fate.group:
                groups.setdefault(fate.group, set()).add(fate.uid in seen)
        if partial := [group for group, stored in groups.items() if len(stored) > 1]:
            raise Broken(f"batched sends were stored in part: {partial}")
        for places in COUNTED_TOGETHER:
            _require_gapless(" and ".join(places), [n for place, n in self._by_number if place in places])
        scheduled = [uid for uid in seen if is_scheduled(uid)]
        _require_gapless(TOPIC, list(self._topic_numbers.values()), unseen_max=len(scheduled))
        copies = self._copies.values()
        return {
            "sent": len(fates),
            "accepted": sum(fate.accepted for fate in fates),
            "copies": len(copies),
            "unknown and stored": sum(not fate.accepted and fate.uid in seen for fate in fates),
            "redelivered": sum(copy.seen > 1 for copy in copies),
            "scheduled": len(scheduled),
            "dead letters": sum(copy.place == GRAVES for copy in copies),
        }


def _require_gapless(what: str, numbers: list[int], *, unseen_max: int = 0) -> None:
    """Check that all numbers from 1 on were seen once, except a few: activation takes a number, and a copy
    shows the one that its message was scheduled with."""
    numbers.sort()
    gaps = [n + 1 for n, following in pairwise((0, *numbers)) if following != n + 1]
    if len(set(numbers)) < len(numbers) or max(numbers, default=0) - len(numbers) > unseen_max:
        raise Broken(f"the numbers of {what} are not 1 to {len(numbers)}: {gaps[:5]} lost or repeated")


class RuleBook:
    """The rules that were added to one subscription and removed, and the expected result."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.unknown: set[str] = set()
        """Added or removed, without an answer so far."""
        self.count = 0
        """Changes that were acknowledged."""

    def changing(self, name: str) -> None:
        """Record a request."""
        self.present.discard(name)
        self.unknown.add(name)

    def changed(self, name: str, *, present: bool) -> None:
        """Record its acknowledgement."""
        self.unknown.discard(name)
        self.count += 1
        if present:
            self.present.add(name)

    def check(self, found: set[str]) -> None:
        """Compare with the rules that a broker has. Raises: Broken."""
        if found - self.unknown != self.present:
            raise Broken(f"rules {sorted(found)}: not those of {sorted(self.present)}")
        self.present = found
        self.unknown = set()
