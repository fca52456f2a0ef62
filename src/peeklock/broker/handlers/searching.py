"""Searches: messages found by a filter, in one queue or in all, to be shown or deleted.

Theory of operation. A search passes over the entities by name, the queues of each, and the messages of a
queue by number. It examines a bounded number and returns where it stopped; the next call continues there, so
nothing is kept between calls. A filter reads properties, which are stored with the body: the search takes
messages in rounds, fetches their bodies with the effect `Fetch`, and judges a round when all are there. A
message that has left its queue by then does not match.
Source: semantics A-08, S-08, S-11.
"""

from __future__ import annotations

from collections.abc import Iterator

from peeklock.amqp.messaging import Sections
from peeklock.broker.content.subject import MessageSubject, without_body
from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.validation import check_rule_size
from peeklock.broker.handlers import scheduled
from peeklock.broker.queue.browsing import in_order_of_number, seen_in
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.commands import Address, Fetched, SequenceNumber, SubQueue
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import Fetch, Match
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityNotFound
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import DeleteMatching, SearchCursor, SearchMessages
from peeklock.broker.vocabulary.message import Message, MessageState
from peeklock.rules.compiled import CompiledFilter, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import Filter

EXAMINED_MAX = 1_000
"""Messages and queues that one call examines: 2 ms of work, 10 ms more with a filter."""

ROUND_MAX = 128
"""Messages fetched at once."""

ROUND_BYTES_MAX = 4 * 1024 * 1024
"""Size of messages that ends a round: they may have to be read from the disk."""

BYTES_MAX = 16 * 1024 * 1024
"""Size of messages that ends a call."""

_NONE_YET = SequenceNumber(-1)
_UNREAD = Sections(b"")

_Found = tuple[SearchCursor, MessageQueue, Message]
_Place = tuple[int, int]
"""Queue id and position."""


class _Search:
    """One call under way."""

    def __init__(self, command: SearchMessages | DeleteMatching, filter: CompiledFilter | None) -> None:
        self.command = command
        self.filter = filter  # None = it is not needed
        self.at = command.after  # the last message examined; None = none yet
        self.is_over = False  # all are examined
        self.examined = 0
        self.size_bytes = 0  # of fetched messages
        self.matches: list[Match] = []
        self.deleted = 0
        self.locked = 0
        self.asked: list[_Found] = []  # the present round
        self.property_sections: dict[_Place, Sections] = {}  # its answers
        self.waiting = 0  # answers to come

    @property
    def count_left(self) -> int:
        """How many more matches it may have."""
        return self.command.messages_max - len(self.matches) - self.deleted - self.locked

    @property
    def has_time(self) -> bool:
        return self.examined < EXAMINED_MAX and self.size_bytes < BYTES_MAX


class Searching:
    """The searches of a namespace."""

    def __init__(self, entities: Entities, shared: Shared) -> None:
        self._entities = entities
        self._shared = shared
        self._waiting: dict[_Place, list[_Search]] = {}

    def begin(self, command: SearchMessages | DeleteMatching, out: Outcome) -> None:
        """Handle a command. Raises: ArgumentInvalid, EntityNotFound, InvalidOperation, EntityDisabled."""
        if command.messages_max < 1:
            raise ArgumentInvalid(f"a search must ask for at least one message, not {command.messages_max}")
        filter = None if command.where is None else _compiled(command.where)
        if command.address is not None:
            entity, queue = self._entities.queue(command.address)
            after = command.after
            if after is not None and not _is_about(after.address, command.address):
                raise ArgumentInvalid(
                    f"the search continues one of '{after.address.path}', not of '{command.address.path}'"
                )
            if isinstance(command, DeleteMatching):
                entity.require_receiving()
            queue.accessed_at_ms = out.now_ms
        search = _Search(command, None if filter is None or filter.always else filter)
        search.is_over = filter is not None and filter.never
        self._go_on(search, out)

    def fetched(self, command: Fetched, out: Outcome) -> None:
        """Take a message that searches may wait for."""
        place = command.queue_id, command.position
        for search in self._waiting.pop(place, ()):
            search.property_sections[place] = without_body(command.payload)
            search.waiting -= 1
            if not search.waiting:
                self._judge(search, out)
                self._go_on(search, out)

    def _go_on(self, search: _Search, out: Outcome) -> None:
        """Continue a search until it must wait or can be answered."""
        while not search.is_over and search.count_left and search.has_time:
            search.asked = self._next_round(search)
            if search.filter is not None and search.asked:
                for _, queue, message in search.asked:
                    self._waiting.setdefault((queue.queue_id, message.position), []).append(search)
                    out.effects.append(Fetch(queue.queue_id, message))
                search.waiting = len(search.asked)
                return
            self._judge(search, out)
        command = search.command
        after = None if search.is_over else search.at
        if isinstance(command, DeleteMatching):
            out.effects.append(do.MatchingDeleted(command.reply_to, search.deleted, search.locked, after))
        else:
            out.effects.append(do.MessagesMatched(command.reply_to, tuple(search.matches), after))

    # Rounds

    def _next_round(self, search: _Search) -> list[_Found]:
        """Return the next messages that may match, and move the search past them."""
        found: list[_Found] = []
        count_max = search.count_left if search.filter is None else ROUND_MAX
        size_bytes = 0
        for address, queue in self._places(search):
            search.examined += 1
            number = _NONE_YET
            if search.at is not None and _is_about(search.at.address, address):
                number = search.at.sequence_number
            key = 0 if number < 0 else queue.key_of(number) + 1
            search.at = SearchCursor(address, number)
            for message in in_order_of_number(queue, key):
                search.examined += 1
                search.at = SearchCursor(address, message.sequence_number)
                # Other messages of a topic are on their way to the subscriptions.
                if queue.fan_out is None or message.state is MessageState.SCHEDULED:
                    found.append((search.at, queue, message))
                    size_bytes += message.size_bytes
                full = len(found) >= count_max or search.examined >= EXAMINED_MAX
                if full or (search.filter is not None and size_bytes >= ROUND_BYTES_MAX):
                    search.size_bytes += size_bytes if search.filter is not None else 0
                    return found
            if search.examined >= EXAMINED_MAX:
                return found
        search.is_over = True
        return found

    def _places(self, search: _Search) -> Iterator[tuple[Address, MessageQueue]]:
        """Yield the queues to examine, from the last one on."""
        command, at = search.command, search.at
        if command.address is not None:
            try:
                _, queue = self._entities.queue(command.address)
            except EntityNotFound:
                return  # it was deleted
            yield command.address, queue
            return
        for entity in self._entities.from_name("" if at is None else at.address.path):
            if isinstance(command, DeleteMatching) and not entity.receives:
                continue
            for address, queue in _queues_of(entity):
                if at is None or _order_of(address) >= _order_of(at.address):
                    yield address, queue

    # Matches

    def _judge(self, search: _Search, out: Outcome) -> None:
        """Take the matches of a round, as far as they are wanted."""
        asked, property_sections = search.asked, search.property_sections
        search.asked, search.property_sections = [], {}
        for at, queue, message in asked:
            if not search.count_left:
                search.is_over = False
                break
            search.at = at
            if self._entities.find_stored(queue.queue_id, message.position) is not message:
                continue  # it has left
            head = property_sections.get((queue.queue_id, message.position), _UNREAD)
            if search.filter is not None and not self._is_true(search.filter, message, head):
                continue
            if isinstance(search.command, DeleteMatching):
                self._delete(search, queue, message, out)
            else:
                search.matches.append(Match(at.address, seen_in(queue, message)))
        for queue in {id(queue): queue for _, queue, _ in asked}.values():
            queue.forget_returned()

    def _is_true(self, filter: CompiledFilter, message: Message, head: Sections) -> bool:
        try:
            return filter.matches(MessageSubject(message, head, self._shared.tokens))
        except EvaluationError:
            return False

    def _delete(self, search: _Search, queue: MessageQueue, message: Message, out: Outcome) -> None:
        if message.lock is not None:
            search.locked += 1
            return
        if message.state is MessageState.SCHEDULED:
            scheduled.cancel(queue, (message.sequence_number,), out)
        elif message.state is MessageState.ACTIVE and queue.has_expired(message, out.now_ms):
            return  # left to the sweep, which may dead-letter it
        else:
            out.happened(EventType.PURGED, queue, message)
            queue.remove(message, out)
        search.deleted += 1

    def check(self) -> None:
        """Assert that searches wait for what is fetched."""
        searches = {id(search): search for waiting in self._waiting.values() for search in waiting}
        for search in searches.values():
            mine = sum(waiting.count(search) for waiting in self._waiting.values())
            assert 0 < search.waiting == mine
            assert search.waiting + len(search.property_sections) == len(search.asked)


def _compiled(where: Filter) -> CompiledFilter:
    """Compile the filter of a search. Raises: ArgumentInvalid."""
    check_rule_size(RuleDescription("search", where))
    try:
        return compile_filter(where)
    except RuleError as error:
        raise ArgumentInvalid(f"the filter of the search is not valid: {error}") from error


def _queues_of(entity: Entity) -> Iterator[tuple[Address, MessageQueue]]:
    for queue in entity.queues():
        yield Address(entity.name, SubQueue(queue.queue_id % QUEUES_PER_ENTITY)), queue


def _order_of(address: Address) -> tuple[str, int]:
    return address.path.lower(), address.sub_queue.value


def _is_about(one: Address, other: Address) -> bool:
    return _order_of(one) == _order_of(other)
