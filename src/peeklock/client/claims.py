"""One entity's cursor as its reader sees it: taken, then claims made, read and committed. Only peeklock has
cursors.

A request to claim is not repeated after a break, since the broker may have done it. The cursor is listed
again then: its new claims are ours, since the broker refuses other readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from peeklock.amqp.types import Long, Timestamp
from peeklock.client.connection import BlockingConnection, connection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import OptionError, ServiceBusError
from peeklock.client.management import Response, Ticket

CLAIM_COUNT_MAX: Final = 2000
"""Messages of a claim. Source: vocabulary of X-06."""

CLAIM_BYTES_MAX: Final = 16 << 20
"""Bytes of a claim. Our choice: readers take whole claims at a time, so they must not be large."""

CLAIMS_MAX: Final = 900
"""Uncommitted claims of a cursor. Source: the broker refuses more than 1,000."""

READS_UNDER_WAY: Final = 4
"""Requests for messages of claims under way; an answer has up to `READ_BYTES`."""
READ_BYTES: Final = 262_144
"""Source: the gateway's limit for an answer with messages."""
OVERHEAD_BYTES: Final = 160
"""What an answer adds to a message: annotations, header, its place in the list. An estimate."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, neither committed nor released."""

    no: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Lag:
    """What a reader has not committed yet."""

    backlog: int
    """Messages that it claimed, and those that no other cursor holds."""
    oldest_ms: int | None
    """Age of the oldest of them; None = there is none."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a claim: `count` messages after the first `skip`."""

    path: str
    no: int
    skip: int
    count: int
    mean_bytes: int


class Cursor:
    """A cursor of a queue, subscription or sub-queue; requests go over a `BlockingConnection`."""

    def __init__(
        self, connection: BlockingConnection, path: str, name: str, owner: str | None = None
    ) -> None:
        """`owner`: the reader, as it names itself; None = it only looks, or reads as older releases did."""
        self.path = path
        self.name = name
        self._named = {"cursor": name} if owner is None else {"cursor": name, "owner": owner}
        self.committed = 0
        """Claims up to this one are committed."""
        self.last = 0
        """Number of the last claim; 0 = none."""
        self.now_ms = 0
        """The broker's time when the cursor was listed, UTC."""
        self.claims: dict[int, Claim] = {}
        """The open claims by number, ascending."""
        self.lag: Lag | None = None
        """Of the cursor when it was listed; None = it does not exist."""
        self.undone: tuple[int, int] | None = None
        """The first and the last number of claims that a restore has undone; None = there was no restore."""
        self._node = connection.management(path)
        self._is_unsure = False
        """The answer to a claim was lost."""
        self._commit: Ticket | None = None
        self._committing = 0

    # What is there

    def lacks(self, after: int, to: int) -> list[int]:
        """Return the numbers above `after`, up to `to`, of claims that were made and are not open."""
        first, last = self.undone or (to + 1, to)
        made = chain(range(after + 1, min(first, to + 1)), range(max(after, last) + 1, to + 1))
        return [no for no in made if no not in self.claims]

    def has_all_up_to(self, no: int) -> bool:
        """Return whether no open claim comes after a number."""
        return no >= next(reversed(self.claims), 0)

    def has_undone(self, no: int) -> bool:
        """Return whether a claim was made in a life that a restore has undone."""
        return self.undone is not None and self.undone[0] <= no <= self.undone[1]

    # Taking and listing

    def start_take(self, *, take_over: bool = False, expires_after_ms: int | None = None) -> Ticket:
        """Ask for the cursor: from now on it belongs to the owner, and to no other reader once it has read.

        Args:
            take_over: also from an owner that has read.
            expires_after_ms: how long after its last use it is forgotten; None = unchanged.
        """
        body: dict[str, Any] = {**self._named, "take-over": take_over}
        if expires_after_ms is not None:
            body["expires-after"] = Long(expires_after_ms)
        return self._node.start("peeklock:cursor-take", body)

    def start_confirm(self) -> Ticket:
        """Tell the broker that the owner reads, so that no other reader takes the cursor."""
        nothing = {"claim": Long(0), "skip": 0, "max-messages": 1, "max-bytes": 1}
        return self._node.start("peeklock:cursor-read", {**self._named, **nothing})

    def finish_confirm(self, ticket: Ticket) -> None:
        """Read the answer to `start_confirm`. Raises: ServiceBusError."""
        self._node.wait(ticket)

    def look_at_lag(self, timeout_s: float) -> None:
        """Update `lag` and `now_ms`. Raises: ServiceBusError."""
        self._read_list(self._node.request("peeklock:cursor-list", {}, timeout_s=timeout_s))

    def start_look(self) -> Ticket:
        """Ask for the state of the cursor."""
        return self._node.start("peeklock:cursor-list", {})

    def finish_look(self, ticket: Ticket) -> None:
        """Read the answer to `start_take`, or to the first `start_look`. Raises: ServiceBusError."""
        last, committed, self.claims = self._read_list(self._node.wait(ticket))
        self.last, self.committed = last, committed

    def _look_again(self) -> None:
        """Find the claims of requests whose answers were lost."""
        last, _, claims = self._read_list(self._node.request("peeklock:cursor-list", {}))
        self._is_unsure = False
        for no in [no for no in claims if no > self.last]:
            self.claims[no] = claims[no]
        self.last = max(self.last, last)

    def _read_list(self, response: Response) -> tuple[int, int, dict[int, Claim]]:
        self.now_ms = int(response.body.get("now", 0))
        self.lag = None
        for found in response.body.get("cursors", []):
            if found["cursor"] == self.name:
                oldest_ms = found.get("oldest-enqueued")
                self.lag = Lag(
                    int(found.get("backlog", 0)), None if oldest_ms is None else self.now_ms - int(oldest_ms)
                )
                undone = found.get("undone")
                self.undone = None if undone is None else (int(undone[0]), int(undone[1]))
                claims = sorted(tuple(int(part) for part in claim) for claim in found["claims"])
                return (
                    int(found["last-claim"]),
                    int(found["committed"]),
                    {no: Claim(no, count, size) for no, count, size in claims},
                )
        return 0, 0, {}

    # Claiming

    def start_claim(self, count: int, size_bytes: int, up_to_ms: int | None) -> Ticket:
        """Request a claim of up to `count` available messages, enqueued up to `up_to_ms`, UTC."""
        body: dict[str, Any] = {**self._named, "max-messages": count, "max-bytes": size_bytes}
        if up_to_ms is not None:
            body["enqueued-time-utc"] = Timestamp(up_to_ms)
        return self._node.start("peeklock:cursor-claim", body, repeat=False)

    def finish_claims(self, tickets: Sequence[Ticket]) -> list[Claim]:
        """Read the answers to `start_claim`; return the new claims, also if an answer was lost.

        Raises:
            ServiceBusError: refused.
        """
        first = self.last + 1
        failure: ServiceBusError | None = None
        for ticket in tickets:
            try:
                self._claimed(self._node.wait(ticket))
            except ServiceBusError as error:
                if not error.retryable:
                    failure = error
                elif ticket.started:
                    self._is_unsure = True
        if self._is_unsure:
            self._look_again()
        if failure is not None:
            raise failure
        return [claim for no, claim in self.claims.items() if no >= first]

    def _claimed(self, response: Response) -> None:
        body = response.body
        no = int(body["claim"])
        if no == 0 or no <= self.last:
            return
        if no > self.last + 1:
            self._is_unsure = True  # `_look_again` finds it
            return
        self.claims[no] = Claim(no, int(body["count"]), int(body["bytes"]))
        self.last = no

    # Committing

    def start_commit(self, up_to: int) -> None:
        """Ask the broker to remove the messages of the claims up to a number.

        The first answer is enough: the broker continues the removal by itself.
        """
        if up_to <= max(self.committed, self._committing):
            return
        self.finish_commit()
        self._committing = up_to
        self._commit = self._node.start("peeklock:cursor-commit", {**self._named, "claim": up_to})

    def finish_commit(self) -> None:
        """Wait for the answer to `start_commit`, if it is under way.

        Raises:
            ServiceBusError: refused.
        """
        if self._commit is None:
            return
        ticket, up_to = self._commit, self._committing
        self._commit, self._committing = None, 0
        self._node.wait(ticket)
        self.committed = max(self.committed, up_to)
        for no in [no for no in self.claims if no <= up_to]:
            del self.claims[no]


def list_cursors(settings: ConnectionString, path: str) -> tuple[list[dict[str, Any]], int]:
    """Return the cursors of an entity as the broker shows them, and its time, UTC ms.

    Raises: ServiceBusError.
    """
    body = connection(settings).management(path).request("peeklock:cursor-list", {}).body
    return body.get("cursors", []), int(body["now"])


def release_cursor(settings: ConnectionString, path: str, name: str, *, dry_run: bool = False) -> int:
    """Make all claimed messages of a cursor available again, and delete the cursor; for a lost reader.

    Args:
        path: of a queue, subscription or sub-queue.
        dry_run: only count.

    Returns:
        The number of messages that were released, or would be.

    Raises:
        OptionError: the entity has no such cursor; the text names its cursors.
        ServiceBusError: refused.
    """
    management = connection(settings).management(path)
    found, _ = list_cursors(settings, path)
    held = {cursor["cursor"]: sum(int(count) for _, count, _ in cursor["claims"]) for cursor in found}
    if name not in held:
        others = ", ".join(sorted(held)) or "none"
        raise OptionError(f"entity '{path}' has no cursor '{name}'; its cursors: {others}.")
    if not dry_run:
        management.request("peeklock:cursor-release", {"cursor": name})
    return held[name]


def fetch(
    connected: BlockingConnection,
    name: str,
    owner: str | None,
    slices: Iterable[Slice],
    fetch_size: int,
) -> Iterator[tuple[Slice, list[bytes]]]:
    """Yield slices of claims in their order, each with its encoded messages; some requests are under way.

    `fetch_size`: messages per request. If a slice has fewer messages than its count, the others are gone.

    Raises:
        ServiceBusError: refused; the claim is unknown or was committed.
    """

    def start(part: Slice) -> tuple[Slice, Ticket]:
        body = {
            **({"cursor": name} if owner is None else {"cursor": name, "owner": owner}),
            "claim": part.no,
            "skip": part.skip,
            "max-messages": part.count,
            "max-bytes": READ_BYTES,
        }
        return part, connected.management(part.path).start("peeklock:cursor-read", body)

    parts = iter(part for whole in slices for part in cut(whole, fetch_size))
    under_way: deque[tuple[Slice, Ticket]] = deque()
    while True:
        while len(under_way) < READS_UNDER_WAY and (part := next(parts, None)) is not None:
            under_way.append(start(part))
        if not under_way:
            return
        part, ticket = under_way.popleft()
        payloads = connected.management(part.path).wait(ticket).messages
        if 0 < len(payloads) < part.count:  # the answer was full: the rest comes next
            rest = Slice(
                part.path, part.no, part.skip + len(payloads), part.count - len(payloads), part.mean_bytes
            )
            under_way.appendleft(start(rest))
            part = Slice(part.path, part.no, part.skip, len(payloads), part.mean_bytes)
        yield part, payloads


def cut(whole: Slice, fetch_size: int) -> Iterator[Slice]:
    """Cut a slice into parts for one answer each, by the mean size of its messages."""
    size = max(1, min(fetch_size, READ_BYTES // (whole.mean_bytes + OVERHEAD_BYTES)))
    for start in range(0, whole.count, size):
        yield Slice(
            whole.path, whole.no, whole.skip + start, min(size, whole.count - start), whole.mean_bytes
        )


def divide(claims: Sequence[tuple[str, Claim]], parts: int) -> list[list[Slice]]:
    """Divide claims into `parts` lists of about as many messages each, in their order."""
    total = sum(claim.count for _, claim in claims)
    parts = max(1, min(parts, total))
    divided: list[list[Slice]] = [[]]
    left = -(-total // parts)  # messages of the last list
    for path, claim in claims:
        mean = claim.size_bytes // max(1, claim.count)
        skip = 0
        while skip < claim.count:
            if not left:
                divided.append([])
                left = -(-total // parts)
            count = min(left, claim.count - skip)
            divided[-1].append(Slice(path, claim.no, skip, count, mean))
            skip += count
            left -= count
    return divided if total else []
