"""Paths into JSON with an optional comparison: `$.order.total > 100`, `$.items[*].sku == "A1"`.

A path is one of RFC 9535 without filters: `$`, members (`.name`, `['name']`), indexes (`[0]`, `[-1]`), slices
(`[1:3]`), wildcards (`.*`, `[*]`), several of them (`[0,2]`), descendants (`..name`, `..[0]`). A document
matches if the path finds a value, even null; with a comparison, if one of the values found satisfies it.
Comparisons are those of RFC 9535, 2.3.5.2.2: values of different types are never equal, and only numbers and
texts have an order.
Our choice: the RFC allows a comparison only inside a filter, and only of a path to one value; after a path,
"one of the values" needs no filter.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from peeklock.search.errors import SearchError

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

LENGTH_MAX: Final = 1024
"""Characters of a path. Our choice: as of a SQL filter."""

INTEGER_MAX: Final = (1 << 53) - 1
"""Largest index. Source: RFC 9535, 2.1."""

GRAMMAR: Final = r"""
start: ROOT segment* [OPERATOR literal]
?segment: MEMBER -> member
    | EVERY -> every
    | DEEP_MEMBER -> deep_member
    | DEEP_EVERY -> deep_every
    | OPEN selector (COMMA selector)* CLOSE -> brackets
    | DEEP_OPEN selector (COMMA selector)* CLOSE -> deep_brackets
?selector: STRING -> name
    | STAR -> star
    | INTEGER -> index
    | [INTEGER] COLON [INTEGER] [COLON [INTEGER]] -> slice
literal: STRING | NUMBER | CONSTANT

ROOT: "$"
MEMBER: /\.[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*/
EVERY: ".*"
DEEP_MEMBER: /\.\.[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*/
DEEP_EVERY: "..*"
OPEN: "["
DEEP_OPEN: "..["
CLOSE: "]"
COMMA: ","
COLON: ":"
STAR: "*"
STRING: /"(?:[^"\\\x00-\x1f]|\\.)*"|'(?:[^'\\\x00-\x1f]|\\.)*'/
INTEGER: /0|-?[1-9][0-9]*/
NUMBER: /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/
CONSTANT: "true" | "false" | "null"
OPERATOR: /==|!=|<=|>=|<|>/
%ignore /[ \t\r\n]+/
"""

_ESCAPE: Final = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|[bfnrt/\\\"'])|\\")

_WORDS: Final = {
    "ROOT": "'$'",
    "MEMBER": ".name",
    "OPEN": "'['",
    "CLOSE": "']'",
    "OPERATOR": "a comparison",
    "STRING": "a text in quotes",
    "INTEGER": "an index",
    "STAR": "'*'",
    "NUMBER": "a number",
    "CONSTANT": "true, false or null",
    "COMMA": "','",
    "$END": "the end",
}
"""Tokens that an error names; the others follow from these."""

Selector: TypeAlias = str | int | slice | None
"""A member, an index, a slice, or None for all."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a path."""

    selectors: tuple[Selector, ...]
    deep: bool = False
    """It selects in all values below, too."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path and its comparison."""

    segments: tuple[Segment, ...]
    operator: str | None = None
    literal: Any = None

    def matches(self, document: Any) -> bool:
        """Return whether a decoded JSON document matches."""
        found = self.find(document)
        if self.operator is None:
            return any(True for _ in found)
        compare, literal = COMPARISONS[self.operator], self.literal
        return any(compare(value, literal) for value in found)

    def find(self, document: Any) -> Iterable[Any]:
        """Return the values that the path finds, each of them at least once."""
        found: Iterable[Any] = (document,)
        for segment in self.segments:
            values = _below(found) if segment.deep else found
            found = _selected(segment.selectors, values)
        return found


def read_json(body: bytes) -> tuple[bool, Any]:
    """Return whether a body is JSON, and its value."""
    try:
        return True, _DECODER.decode(body.decode())
    except (ValueError, RecursionError):  # also of bytes that are no text
        return False, None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
"""Made once: `json.loads` makes one for each call that has an argument."""


def prefilter(path: JsonPath) -> Callable[[str], bool]:
    """Return a test of a text: False = it does not match, or is no JSON. True needs the decoded text.

    A path that names a member finds nothing in a text without this name. If it ends with the name, it finds
    values of such members, and a comparison must be true of one.
    """
    named = [each.selectors[0] for each in path.segments if len(each.selectors) == 1]
    names = [name for name in named if isinstance(name, str)]
    if not names:
        return lambda text: True
    quoted = f'"{names[-1]}"'
    if path.operator in (None, "!=") or path.segments[-1].selectors != (names[-1],):
        return lambda text: quoted in text or "\\" in text  # names may be escaped
    compare, literal, further = COMPARISONS[path.operator], path.literal, len(quoted) - 1

    def may_match(text: str) -> bool:
        if "\\" in text:
            return True
        place = text.find(quoted)
        while place >= 0:
            colon = _COLON.match(text, place + len(quoted))
            # Of objects and arrays no comparison with a literal is true.
            if colon is not None and text[colon.end()] not in "[{":
                if compare(_DECODER.raw_decode(text, colon.end())[0], literal):
                    return True
            place = text.find(quoted, place + further)  # the last quote may begin another name
        return False

    def test(text: str) -> bool:
        try:
            return may_match(text)
        except (ValueError, IndexError):  # not JSON, or a text that looks like a member
            return True

    return test


_COLON: Final = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")


def _selected(selectors: tuple[Selector, ...], values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        for selector in selectors:
            if type(value) is dict:
                if type(selector) is str:
                    if selector in value:
                        yield value[selector]
                elif selector is None:
                    yield from value.values()
            elif type(value) is list:
                if type(selector) is int:
                    if -len(value) <= selector < len(value):
                        yield value[selector]
                elif type(selector) is slice:
                    if selector.step != 0:  # "When step is 0, no elements are selected." RFC 9535, 2.3.4.2.2
                        yield from value[selector]
                elif selector is None:
                    yield from value


def _below(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and all below them, each object and array once."""
    seen: set[int] = set()
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        if type(value) not in (dict, list) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        waiting += value.values() if type(value) is dict else value


# Comparison


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _equal(one: Any, other: Any) -> bool:
    return _kind(one) == _kind(other) and bool(one == other)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(one: Any, other: Any) -> bool:
        kind = _kind(one)
        return kind in ("number", "str") and kind == _kind(other) and compare(one, other)

    return ordered


def _or_equal(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """`<=` of values without an order is true if they are equal: RFC 9535, 2.3.5.2.2."""
    ordered = _ordered(compare)
    return lambda one, other: ordered(one, other) or _equal(one, other)


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": _equal,
    "!=": lambda one, other: not _equal(one, other),
    "<": _ordered(operator.lt),
    "<=": _or_equal(operator.lt),
    ">": _ordered(operator.gt),
    ">=": _or_equal(operator.gt),
}


# Parsing


@cache
def _parser() -> Lark:
    from lark import Lark  # takes longer to load than a command may take to start

    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


def parse(text: str) -> JsonPath:
    """Return the path of a text. Raises: SearchError."""
    if len(text) > LENGTH_MAX:
        raise SearchError("json_path", f"the path has {len(text)} characters; the limit is {LENGTH_MAX}")
    from lark.exceptions import UnexpectedInput

    try:
        tree: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    _, *parts = tree.children
    *segments, sign, literal = parts
    path = tuple(_segment(text, segment) for segment in segments)
    if sign is None:
        return JsonPath(path)
    return JsonPath(path, str(sign), _literal(text, literal.children[0]))


def _segment(text: str, tree: Tree[Token]) -> Segment:
    deep = tree.data.startswith("deep_")
    match tree.data.removeprefix("deep_"):
        case "member":
            return Segment((str(tree.children[0]).lstrip("."),), deep)
        case "every":
            return Segment((None,), deep)
    # Between the brackets: selectors and commas.
    return Segment(tuple(_selector(text, each) for each in tree.children[1:-1:2]), deep)


def _selector(text: str, tree: Any) -> Selector:
    match tree.data:
        case "name":
            return _string(text, tree.children[0])
        case "index":
            return _integer(text, tree.children[0])
        case "slice":
            start, _, end, _, step = tree.children
            return slice(*(None if each is None else _integer(text, each) for each in (start, end, step)))
    return None


def _literal(text: str, token: Token) -> Any:
    if token.type == "STRING":
        return _string(text, token)
    return json.loads(token)


def _integer(text: str, token: Token) -> int:
    number = int(token)
    if abs(number) > INTEGER_MAX:
        raise SearchError("json_path", "the index is too large", text, token.start_pos)
    return number


def _string(text: str, token: Token) -> str:
    """Return the text between quotes; an escaped apostrophe is the one that JSON does not know."""
    inner = token[1:-1]
    for escape in _ESCAPE.finditer(inner):
        if len(escape[0]) == 1:
            place = (token.start_pos or 0) + 1 + escape.start()
            raise SearchError("json_path", "unknown escape", text, place)
    inner = re.sub(r"""\\.|\"""", lambda found: {"\\'": "'", '"': '\\"'}.get(found[0], found[0]), inner)
    found: str = json.loads(f'"{inner}"', strict=False)
    return found


def _unexpected(text: str, error: UnexpectedInput) -> SearchError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    position, accepted = len(text.rstrip()), set[str]()
    if isinstance(error, UnexpectedCharacters):
        place: Any = error.pos_in_stream  # lark's type of it is None
        position, accepted = place, set(error.allowed or ())
    elif isinstance(error, UnexpectedToken):
        accepted = set(error.accepts or error.expected)
        if error.token.type != "$END" and error.token.start_pos is not None:
            position = error.token.start_pos
    rest = text[position:]
    words = [word for name, word in _WORDS.items() if name in accepted]
    expected = " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
    found = repr(rest[0]) if rest else "the end"
    hint = ""
    if rest.startswith("=") and "OPERATOR" in accepted:
        hint = "; == compares"
    elif rest.startswith("?"):
        hint = "; a comparison follows the path, as in $.total > 100"
    return SearchError("json_path", f"expected {expected}, found {found}{hint}", text, position)
