"""What a message must be, and the search that judges messages by it.

Theory of operation. Each criterion becomes a function of a `Peeked`; all of them must be true. They are
asked from the cheapest to the dearest, so most messages are judged by the bytes of one section, and a body
is decoded only if all else is true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from peeklock.amqp.annotations import ENQUEUED, NUMBER
from peeklock.broker.vocabulary.message import MessageState
from peeklock.rules.ast import NewId, Node, children
from peeklock.rules.compiled import CompiledFilter, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import SqlFilter
from peeklock.rules.parser import parse_filter
from peeklock.search import json_path
from peeklock.search.errors import SearchError
from peeklock.search.peeked import Peeked
from peeklock.search.subject import PeekedSubject

Test: TypeAlias = Callable[[Peeked], bool]

_ENCODING: Final = ("utf-8", "replace")
_DEAD_LETTER_REASON: Final = b"DeadLetterReason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What a message must be. All that is given must be true of it; None = not asked."""

    from_number: int | None = None
    """Lowest sequence number."""
    to_number: int | None = None
    """Highest sequence number."""
    since_ms: int | None = None
    """Earliest enqueued time, UTC ms."""
    until_ms: int | None = None
    """The enqueued time is before this, UTC ms."""
    state: MessageState | None = None
    session_id: str | None = None
    dead_letter_reason: str | None = None
    """`DeadLetterReason`, in full."""
    filter: str | None = None
    """SQL, as of a subscription's rule. A message for which it cannot be evaluated does not match."""
    text: str | None = None
    """Part of the body."""
    regex: str | None = None
    """A regular expression of Python that is found in the body, as text in UTF-8; bytes that are not become
    U+FFFD. An expression such as `(a+)+b` may never end over one body: to limit that is the caller's
    affair."""
    ignore_case: bool = False
    """Of `text` and `regex`."""
    json_path: str | None = None
    """A path into a body that is JSON, see `peeklock.search.json_path`."""


class Search:
    """Compiled criteria."""

    __slots__ = ("_tests", "criteria")

    def __init__(self, criteria: Criteria, tests: tuple[Test, ...]) -> None:
        """See `compile`. `tests` are asked in this order."""
        self.criteria = criteria
        self._tests = tests

    @classmethod
    def compile(cls, criteria: Criteria) -> Search:
        """Return the search for some criteria. Raises: SearchError."""
        return cls(criteria, tuple(_tests(criteria)))

    def matches(self, peeked: Peeked) -> bool:
        """Return whether a message is one that is looked for."""
        for test in self._tests:  # a generator for `all` would cost more than most tests
            if not test(peeked):
                return False
        return True

    def among(self, messages: Iterable[bytes]) -> Iterator[Peeked]:
        """Yield those of the encoded messages that match, in their order."""
        for payload in messages:
            peeked = Peeked(payload)
            if self.matches(peeked):
                yield peeked


def _tests(given: Criteria) -> Iterator[Test]:
    """Yield a test for each criterion, the cheapest first."""
    if given.from_number is not None or given.to_number is not None:
        yield _between(NUMBER, given.from_number, given.to_number)
    if given.since_ms is not None or given.until_ms is not None:
        last_ms = None if given.until_ms is None else given.until_ms - 1
        yield _between(ENQUEUED, given.since_ms, last_ms)
    if given.state is not None:
        yield lambda peeked: peeked.state is given.state
    if given.session_id is not None:
        yield lambda peeked: peeked.session_id == given.session_id
    if given.dead_letter_reason is not None:
        yield _dead_lettered(given.dead_letter_reason)
    if given.filter is not None:
        yield _filtered(given.filter)
    if given.text is not None:
        yield _containing(given.text, given.ignore_case)
    if given.regex is not None:
        yield _finding(given.regex, given.ignore_case)
    if given.json_path is not None:
        yield _at_path(json_path.parse(given.json_path))


def _between(place: int, first: int | None, last: int | None) -> Test:
    """Return a test of a number that the broker gave a message."""
    low, high = first if first is not None else -math.inf, last if last is not None else math.inf

    def test(peeked: Peeked) -> bool:
        number = peeked.broker[place]
        return number is not None and low <= number <= high

    return test


def _dead_lettered(reason: str) -> Test:
    wanted = reason.encode("utf-8", "surrogatepass")

    def test(peeked: Peeked) -> bool:
        # Neither name nor value can be there unless their bytes are: most messages need no decoding.
        payload, sections = peeked.payload, peeked.sections
        span = sections.properties_end, sections.body_offset
        return (
            payload.find(_DEAD_LETTER_REASON, *span) >= 0
            and payload.find(wanted, *span) >= 0
            and peeked.dead_letter_reason == reason
        )

    return test


def _filtered(text: str) -> Test:
    is_true = _compiled(text).matches

    def test(peeked: Peeked) -> bool:
        try:
            return is_true(PeekedSubject(peeked))
        except EvaluationError:
            return False

    return test


def _compiled(text: str) -> CompiledFilter:
    try:
        compiled = compile_filter(SqlFilter(text))
        tree: list[Node] = [parse_filter(text)]
    except RuleError as error:
        position = None if error.position is None else error.position - 1
        raise SearchError("filter", error.what.removesuffix("."), text, position) from None
    for node in tree:
        if isinstance(node, NewId):
            raise SearchError("filter", "newid() has no value in a search", text, node.position - 1)
        tree += children(node)
    return compiled


def _containing(text: str, ignore_case: bool) -> Test:
    folded = text.casefold()
    wanted = (folded if ignore_case else text).encode("utf-8", "surrogatepass")

    def exactly(peeked: Peeked) -> bool:
        span = peeked.data_span()
        return wanted in peeked.body if span is None else peeked.payload.find(wanted, *span) >= 0

    def in_any_case(peeked: Peeked) -> bool:
        body = peeked.body
        if body.isascii():
            return wanted in body.lower()
        return folded in body.decode(*_ENCODING).casefold()

    return in_any_case if ignore_case else exactly


def _finding(text: str, ignore_case: bool) -> Test:
    try:
        search = re.compile(text, re.IGNORECASE if ignore_case else 0).search
    except re.error as error:
        raise SearchError("regex", str(error.msg), text, error.pos) from None
    except (OverflowError, RecursionError):
        raise SearchError("regex", "the expression has too large a number, or too many levels") from None
    return lambda peeked: search(peeked.body.decode(*_ENCODING)) is not None


def _at_path(path: json_path.JsonPath) -> Test:
    may_match = json_path.prefilter(path)

    def test(peeked: Peeked) -> bool:
        text = peeked.body_text
        if text is None or not may_match(text):
            return False
        is_json, document = json_path.read_json(peeked.body)
        return is_json and path.matches(document)

    return test
