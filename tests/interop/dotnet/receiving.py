"""What the .NET client reads of deliveries and answers.

Owns: what it relies on in each message, and the options of steps that check one. Must not know links' frames.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from peeklock.amqp.types import Array, Described, Long, Symbol, Timestamp, UInt
from tests.interop.dotnet.client import Delivery, Link, Node, read_message
from tests.interop.dotnet.frames import HEADER, PROPERTIES
from tests.interop.dotnet.scenario import Step
from tests.interop.dotnet.words import expand

SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
LOCKED_UNTIL = Symbol("x-opt-locked-until")
RELIED_ON = {SEQUENCE_NUMBER: Long, Symbol("x-opt-enqueued-time"): Timestamp}
"""Annotations of each message that is received or peeked, and their types."""


class Receiving:
    """Checks messages; returns the values that later steps take from them."""

    def __init__(self, value: Callable[[str], Any]) -> None:
        """Set up; `value` reads a value as it is written in a step."""
        self._value = value

    # Values for later steps

    def of_delivery(self, name: str, link: Link, index: int) -> Any:
        """Return the `token` or the `sequence` number of a delivery, by its place on the link."""
        delivery = link.deliveries[index]
        if name == "token":
            return uuid.UUID(bytes_le=delivery.tag)
        return delivery.sections()[0x72][0][SEQUENCE_NUMBER]

    def of_answer(self, name: str, node: Node, index: int) -> Any:
        """Return the same of a message in the last answer."""
        entry = node.last[0x77][0]["messages"][index]
        if name == "token":
            return entry["lock-token"]
        return read_message(entry["message"])[0x72][0][SEQUENCE_NUMBER]

    # Checks: each returns what is wrong, or nothing

    def wrong(self, link: Link, delivery: Delivery, step: Step, offset: int) -> str:
        """Check a delivery that a step waits for, the `offset`th of it."""
        if delivery.settled is not link.settled:
            return f"settled={delivery.settled} where it should be {link.settled}"
        if delivery.message_format:
            return f"message-format {delivery.message_format}"
        if not link.settled and len(delivery.tag) != 16:
            return f"the tag {delivery.tag.hex()} is no lock token"
        sections = delivery.sections()
        return self._wrong_message(sections, step, offset, locked=not link.settled)

    def wrong_answer(self, node: Node, step: Step) -> str:
        """Check an answer: the body that the step names, and its messages."""
        body = node.last[0x77][0]
        for word in step.words[2:]:
            if word.startswith("{") and (wrong := subset(self._value(word), body)):
                return wrong
        if "rules" in step.options:
            names = [_rule_name(entry["rule-description"]) for entry in body["rules"]]
            if names != step.options["rules"].split(","):
                return f"rules {names}"
        if "messages" not in step.options:
            return ""
        entries = body["messages"]
        wanted = step.options["messages"]
        if str(len(entries)) != wanted and not (wanted == "some" and entries):
            return f"{len(entries)} messages where {wanted} were expected"
        locked = "locked" in step.words
        for offset, entry in enumerate(entries):
            if locked and type(entry.get("lock-token")) is not uuid.UUID:
                return f"no lock-token in {sorted(entry)}"
            wrong = self._wrong_message(read_message(entry["message"]), step, offset, locked=locked)
            if wrong:
                return f"message {offset}: {wrong}"
        return ""

    def _wrong_message(self, sections: dict[int, list[Any]], step: Step, offset: int, *, locked: bool) -> str:
        annotations = sections.get(0x72, [{}])[0]
        relied_on = {**RELIED_ON, LOCKED_UNTIL: Timestamp} if locked else RELIED_ON
        for name, kind in relied_on.items():
            if type(annotations.get(name)) is not kind:
                return f"{name} is {annotations.get(name)!r}"
        properties = _named(PROPERTIES, sections.get(0x73, [[]])[0])
        header = _named(HEADER, sections.get(0x70, [[]])[0])
        found = {
            "annotations": annotations,
            "properties": properties,
            "header": header,
            "app": sections.get(0x74, [{}])[0],
        }
        for section, has in found.items():
            if section in step.options and (wrong := subset(self._value(step.options[section]), has)):
                return f"{section}: {wrong}"
        options = step.options
        if "id" in options:
            ids = [one for word in options["id"].split(",") for one in expand(word)]
            if properties["message-id"] != ids[offset]:
                return f"message-id {properties['message-id']!r} where {ids[offset]!r} was expected"
        if "body" in options:
            size = sum(map(len, sections.get(0x75, [])))
            if size != int(options["body"]):
                return f"a body of {size} bytes where {options['body']} were expected"
        if "delivery-count" in options:
            # The client shows one more than the header has.
            count = header["delivery-count"]
            if count != int(options["delivery-count"]) or type(count) is not UInt:
                return f"delivery-count {count!r} where {options['delivery-count']} was expected"
        return ""


_KINDS: dict[str, Callable[[Any], bool]] = {
    "time": lambda value: type(value) is Timestamp,
    "times": lambda value: isinstance(value, Array) and value.element_type is Timestamp,
    "long": lambda value: type(value) is Long,
    "longs": lambda value: isinstance(value, Array) and value.element_type is Long,
}
"""Placeholders for values of which only the type is known."""


def subset(wanted: dict[Any, Any], found: dict[Any, Any]) -> str:
    """Return what of `wanted` is not in `found`, with its type; the null of an absent key is in it."""
    for key, value in wanted.items():
        has = found.get(key)
        if isinstance(value, dict) and isinstance(has, dict):
            if wrong := subset(value, has):
                return f"{key}: {wrong}"
        elif type(value) is str and value in _KINDS:
            if not _KINDS[value](has):
                return f"{key} is {has!r}, not {value}"
        elif has != value or type(has) is not type(value):
            return f"{key} is {has!r}, not {value!r}"
    return ""


def _rule_name(description: Any) -> str:
    """Return the name in a described rule: the third value of the list."""
    assert isinstance(description, Described)
    return str(description.value[2])


def _named(names: list[str], values: list[Any]) -> dict[str, Any]:
    return dict(zip(names, [*values, *[None] * len(names)], strict=False))
