"""XML that clients send: from bytes to the description element and its typed values.

Elements are found by local name, in any order and with any prefix: the official clients differ in prefixes,
and Python removes some of its own by text replacement. `defusedxml` is imported at the first parse, which
most brokers never need.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from peeklock.admin.typed_texts import cut
from peeklock.broker.vocabulary.durations import parse_duration
from peeklock.broker.vocabulary.errors import ArgumentInvalid

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

BODY_BYTES_MAX = 512 * 1024
"""The description of an entity has under 32 KiB; the values of a rule have 64 KiB, 384 KiB when each
character is escaped. Our choice: the parser takes 7 ms for as many line feeds, each of which is an event."""

MARKS_MAX = 5_000
"""Tags and attributes of a body together. They cost more than its bytes: 0.6 us a tag and 0.8 to 1.5 us an
attribute, so 7.5 ms at most. 70,000 attributes in one element take 0.1 to 0.2 s. Our choice: a rule with a
hundred parameters has about a thousand."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"
_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"


def read_description(body: bytes) -> Description:
    """Parse the description in an entry's content.

    Raises: ArgumentInvalid: too large, not XML, with a DTD or entities, or not an entry with one element as
    content.
    """
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentInvalid(f"The body is larger than {BODY_BYTES_MAX} bytes.")
    # Before the parser, which reports a tag only with all of its attributes. Each has a "="; one in a text
    # counts too.
    if body.count(b"<") + body.count(b"=") > MARKS_MAX:
        raise ArgumentInvalid(f"The body has more than {MARKS_MAX} tags and attributes.")
    root = _parsed(body)
    if _local(root) != "entry":
        raise ArgumentInvalid(f"The body is not an ATOM entry: its root is {cut(_local(root))!r}.")
    return _content(root)


def read_answer(body: bytes) -> list[tuple[str, Description]]:
    """Parse an entry, or the page of a list, that an administration answers: title and description of each.

    A feed without entries means that there is nothing.

    Raises: ArgumentInvalid: it is neither.
    """
    root = _parsed(body)
    if _local(root) not in ("entry", "feed"):
        raise ArgumentInvalid(f"The answer is not ATOM: its root is {cut(_local(root))!r}.")
    entries = [root] if _local(root) == "entry" else [each for each in root if _local(each) == "entry"]
    return [(Description(each).text("title"), _content(each)) for each in entries]


def _parsed(body: bytes) -> Element:
    """Return the root of a document without a DTD. Raises: ArgumentInvalid."""
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except DefusedXmlException as failure:
        raise ArgumentInvalid("The body has a document type or entities, which are not read.") from failure
    except (ParseError, ValueError, LookupError) as failure:  # the latter two: an unknown or wrong encoding
        raise ArgumentInvalid(f"The body is not XML: {failure}.") from failure
    return root


def _content(entry: Element) -> Description:
    """Return the description in an entry. Raises: ArgumentInvalid."""
    contents = [child for child in entry if _local(child) == "content"]
    if len(contents) != 1 or len(contents[0]) != 1:
        raise ArgumentInvalid("The body is not an ATOM entry with one content, and in it one description.")
    return Description(contents[0][0])


class Description:
    """A description element, or one in it; values are read by the name of their element, which
    must be unique."""

    def __init__(self, element: Element) -> None:
        self.kind = _local(element)
        """`QueueDescription`, ..."""
        self.type = (element.get(_TYPE) or "").rpartition(":")[2].strip()
        """Its `i:type` without the prefix, such as `SqlFilter`; empty = none."""
        self.content = element.text or ""
        """Its text, unchanged."""
        self._element = element
        self._children: dict[str, Element] = {}
        self._repeated: set[str] = set()
        for child in element:
            if child.get(_NIL) not in ("true", "1"):
                name = _local(child)
                if name in self._children:
                    self._repeated.add(name)
                self._children[name] = child

    def has(self, name: str) -> bool:
        """Return whether an element is there and not nil. Raises: ArgumentInvalid: more than once."""
        if name in self._repeated:
            raise ArgumentInvalid(f"There is more than one {name} in a {cut(self.kind)}.")
        return name in self._children

    def has_children(self, name: str) -> bool:
        """Return whether an element is there and holds others. Raises: as `has`."""
        return self.has(name) and len(self._children[name]) > 0

    def child(self, name: str) -> Description:
        """Return an element that is there."""
        return Description(self._children[name])

    def items(self, name: str) -> list[Description]:
        """Return all elements of a name, in order."""
        return [Description(child) for child in self._element if _local(child) == name]

    def text(self, name: str) -> str:
        """Read an element's text, outer white space removed."""
        return (self._children[name].text or "").strip()

    def exact_text(self, name: str) -> str:
        """Read an element's text unchanged."""
        return self._children[name].text or ""

    def boolean(self, name: str) -> bool:
        """Read an XML Schema boolean. Raises: ArgumentInvalid."""
        text = self.text(name).lower()
        if text in ("true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise ArgumentInvalid(f"The value {cut(self.text(name))!r} of {name} is neither true nor false.")

    def whole_number(self, name: str) -> int:
        """Read a whole number of up to 18 digits. Raises: ArgumentInvalid."""
        text = self.text(name)
        if not _WHOLE_NUMBER.fullmatch(text):
            told = f"The value {cut(text)!r} of {name}"
            raise ArgumentInvalid(f"{told} is not a whole number of up to 18 digits.")
        return int(text)

    def duration(self, name: str) -> int:
        """Read a duration in ms. Raises: ArgumentInvalid."""
        try:
            return parse_duration(cut(self.text(name)))  # no duration is so long
        except ValueError as failure:
            raise ArgumentInvalid(f"The value of {name} cannot be read: {failure}.") from failure


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
