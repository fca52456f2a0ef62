"""Searches: whether a browsed message, as bytes, is one that is looked for. Pure.

A search knows no connection and no clock: its caller passes messages, as many at a time as it likes.

errors     `SearchError`: a criterion that cannot be read, with a line that marks the place.
peeked     `Peeked`: one message, whose sections are decoded when they are asked for.
subject    A peeked message as SQL filters see it.
json_path  Paths into JSON, with an optional comparison: parsed and evaluated.
criteria   `Criteria`, and `Search`, which judges messages by them.
plain      AMQP values as values of JSON.
showing    A peeked message as one JSON object.

    search = Search.compile(Criteria(filter="sys.Label = 'pizza'", json_path="$.total > 100"))
    for found in search.among(messages):
        print(found.sequence_number)
"""

from peeklock.broker.vocabulary.message import MessageState
from peeklock.search.criteria import Criteria, Search
from peeklock.search.errors import SearchError
from peeklock.search.peeked import STATES, Peeked
from peeklock.search.plain import instant_text
from peeklock.search.showing import message_json

__all__ = [
    "STATES",
    "Criteria",
    "MessageState",
    "Peeked",
    "Search",
    "SearchError",
    "instant_text",
    "message_json",
]
