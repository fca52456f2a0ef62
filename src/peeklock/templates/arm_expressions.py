"""Template expressions, parsed and evaluated: `[format('{0}/{1}', parameters('ns'), 'orders')]`.

What only Azure knows, such as `resourceGroup().location` and `uniqueString(...)`, and a parameter without a
value, is an `Unknown`. In a text its place is kept by a mark, so that `<unknown>/orders` still has the name
`orders`. An unknown value that is needed is a problem, with the expression that it comes from.
Source: Learn, "ARM template syntax and expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

EXPRESSION_LENGTH_MAX: Final = 24_576
"""Characters. Source: Learn, "Template limits"."""

DEPTH_MAX: Final = 100
"""Calls in calls. Our choice: the deepest expressions that Bicep makes have some twenty."""

_TOKEN = re.compile(
    r"\s*(?:'((?:[^']|'')*)'|(-?[0-9]{1,18})|([A-Za-z_][A-Za-z0-9_]*)|(\.\?|\[\?|[()\[\],.]))"
)
_MARK = re.compile("\ue000([^\ue001]*)\ue001")


class NotEvaluated(Exception):
    """An expression that is wrong, or that only Azure can evaluate; the text says which."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the deployment knows."""

    expression: str

    @property
    def mark(self) -> str:
        """Its place in a text; it contains no slash, which separates names."""
        return f"\ue000{self.expression.encode().hex()}\ue001"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function; `text` is its source."""

    name: str
    arguments: tuple[Node, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Access:
    """A property or an element of a value."""

    of: Node
    key: Node
    is_safe: bool
    """Null where it is missing."""
    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int


Node = Call | Access | Constant


def text_of(value: Any) -> str:
    """Return a value in a text that names."""
    return value.mark if isinstance(value, Unknown) else str(value)


def unknown_in(value: Any) -> str | None:
    """Return the first expression in a value that only Azure can evaluate; None = there is none."""
    seen: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Unknown):
            return each.expression
        if isinstance(each, str) and (found := _MARK.search(each)):
            return bytes.fromhex(found[1]).decode()
        if isinstance(each, dict | list) and id(each) not in seen:
            seen.add(id(each))
            left += each.values() if isinstance(each, dict) else each
    return None


def readable(text: str) -> str:
    """Return a text with its unknown parts as `<expression>`."""
    return _MARK.sub(lambda found: f"<{bytes.fromhex(found[1]).decode()}>", text)


def parse(text: str) -> Node:
    """Return the tree of an expression, without its outer brackets. Raises: NotEvaluated."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise NotEvaluated(f"the expression is longer than {EXPRESSION_LENGTH_MAX} characters")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._at < len(self._tokens):
            raise self._wrong()
        return node

    def _scan(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield kind, text, start and end of each token."""
        position = 0
        text = self._text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise NotEvaluated(f"'{self._text[:80]}' is not an expression: see character {position + 1}")
            kind = ("string", "number", "name", "sign")[(found.lastindex or 1) - 1]
            start = found.start(found.lastindex or 1) - (kind == "string")
            yield kind, found[found.lastindex or 1], start, found.end()
            position = found.end()

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise NotEvaluated(f"the expression is nested deeper than {DEPTH_MAX} calls")
        kind, text, start, _ = self._next()
        node: Node
        if kind == "string":
            node = Constant(text.replace("''", "'"))
        elif kind == "number":
            node = Constant(int(text))
        elif kind == "name":
            while self._is("."):  # of a user's function: namespace.function
                self._at += 1
                text += "." + self._next()[1]
            self._take("(")
            arguments = []
            while not self._is(")"):
                arguments.append(self._expression())
                if not self._is(")"):
                    self._take(",")
            self._take(")")
            node = Call(text, tuple(arguments), self._since(start))
        else:
            self._at -= 1
            raise self._wrong()
        node = self._accesses(node, start)
        self._depth -= 1
        return node

    def _accesses(self, node: Node, start: int) -> Node:
        while self._is(".", ".?", "[", "[?"):
            sign = self._next()[1]
            key: Node
            if sign in (".", ".?"):
                key = Constant(self._next()[1])
            else:
                key = self._expression()
                self._take("]")
            node = Access(node, key, sign.endswith("?"), self._since(start))
        return node

    def _since(self, start: int) -> str:
        return self._text[start : self._tokens[self._at - 1][3]]

    def _is(self, *signs: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][:2] in {
            ("sign", each) for each in signs
        }

    def _next(self) -> tuple[str, str, int, int]:
        if self._at >= len(self._tokens):
            raise NotEvaluated(f"'{self._text[:80]}' is not an expression: it ends early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wrong()
        self._at += 1

    def _wrong(self) -> NotEvaluated:
        if self._at >= len(self._tokens):
            return NotEvaluated(f"'{self._text[:80]}' is not an expression: it ends early")
        position = self._tokens[self._at][2]
        return NotEvaluated(f"'{self._text[:80]}' is not an expression: see character {position + 1}")


def evaluate(node: Node, call: Callable[[Call], Any]) -> Any:
    """Return the value of a tree; `call` returns that of a call. Raises: NotEvaluated."""
    match node:
        case Constant():
            return node.value
        case Call():
            return call(node)
    of, key = evaluate(node.of, call), evaluate(node.key, call)
    if isinstance(of, Unknown) or isinstance(key, Unknown):
        return Unknown(node.text)
    if of is None and node.is_safe:
        return None
    if isinstance(of, dict):
        for name, value in of.items():
            if isinstance(key, str) and name.lower() == key.lower():
                return value
    elif isinstance(of, list) and isinstance(key, int) and 0 <= key < len(of):
        return of[key]
    if node.is_safe:
        return None
    raise NotEvaluated(f"{node.text}: there is no {key!r}")
