"""Parsing of text to the syntax tree, with limits, and errors in the words of the language.

Source of the limits: Learn "Service Bus quotas" (1,024 characters, 32 statements); the depth is our choice.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from peeklock.rules.ast import RESERVED_IN_ACTIONS, Node, Predicate, Remove, Statement, children
from peeklock.rules.errors import RuleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lark import Lark, Token
    from lark.exceptions import UnexpectedToken

LENGTH_MAX = 1024
"""Characters of an expression."""
STATEMENTS_MAX = 32
"""Statements of one action."""
DEPTH_MAX = 32
"""Levels of a tree: far below Python's limit of recursion, in compiling and evaluating."""
CACHED_MAX = 1024
"""Cached trees, up to about 10 KB each."""

EXCERPT = 24
"""Characters shown on each side of a position."""

_OF_CONDITIONS = frozenset(["EQ", "COMPARE", "_AND", "_OR", "_NOT", "_IS", "_IN", "_LIKE"])


@lru_cache(CACHED_MAX)
def parse_filter(text: str) -> Predicate:
    """Return the tree of a filter. Raises: RuleError."""
    tree: Predicate = _parse("filter", text)
    _check_depth(tree, text)
    return tree


@lru_cache(CACHED_MAX)
def parse_action(text: str) -> tuple[Statement, ...]:
    """Return the statements of an action. Raises: RuleError."""
    statements: tuple[Statement, ...] = _parse("action", text)
    if len(statements) > STATEMENTS_MAX:
        raise RuleError(f"The action has {len(statements)} statements; the limit is {STATEMENTS_MAX}.")
    for statement in statements:
        if not isinstance(statement, Remove):
            _check_depth(statement.value, text)
    return statements


def located(error: RuleError, text: str) -> RuleError:
    """Return an error that also shows its place in the text."""
    if error.position is None:
        return error
    at = min(error.position - 1, len(text))
    # The message is one line.
    text, what = _printable(text), _printable(str(error))
    before, after = text[max(0, at - EXCERPT) : at], text[at : at + EXCERPT]
    head = "..." if at > EXCERPT else ""
    tail = "..." if at + EXCERPT < len(text) else ""
    if not what.startswith("sys."):
        what = what[:1].upper() + what[1:]
    return RuleError(
        f"{what}; at position {error.position}, marked ^: {head}{before}^{after}{tail}",
        error.position,
        what,
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


@cache
def _parser(start: str) -> Lark:
    from peeklock.rules.grammar import make_parser  # lark loads with the first text

    return make_parser(start)


def _parse(start: str, text: str) -> Any:
    if len(text) > LENGTH_MAX:
        raise RuleError(f"The {start} has {len(text)} characters; the limit is {LENGTH_MAX}.")
    if not text or text.isspace():
        raise RuleError(f"The {start} is empty.")
    parser = _parser(start)
    from lark.exceptions import UnexpectedToken, VisitError

    try:
        return parser.parse(text)
    except RuleError as error:
        raise located(error, text) from None
    except VisitError as error:
        if isinstance(error.orig_exc, RuleError):
            raise located(error.orig_exc, text) from None
        raise
    except UnexpectedToken as error:
        raise located(_unexpected(start, text, error), text) from None


def _check_depth(tree: Node, text: str) -> None:
    level: list[Node] = [tree]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in children(node)]
        if not level:
            return
    raise located(RuleError(f"nested more than {DEPTH_MAX} levels deep", level[0].position), text)


def _unexpected(start: str, text: str, error: UnexpectedToken) -> RuleError:
    from peeklock.rules.grammar import tokens_before
    from peeklock.rules.hints import unexpected

    token = error.token
    at_end = token.type == "$END"
    position = len(text.rstrip()) if at_end else token.start_pos
    assert position is not None
    before = tokens_before(start, text, position)
    if not at_end and (known := unexpected(start, text, token, before)):
        return known
    if start == "action" and token.type in _OF_CONDITIONS and _makes_condition(token, before, error.accepts):
        return RuleError(f"an action takes a value, not a condition; found {str(token)!r}", position + 1)
    found = f"the end of the {start}" if at_end else repr(str(token))
    after = f" after {str(before[-1])!r}" if before else ""
    hint = ""
    if not at_end and token.upper() in RESERVED_IN_ACTIONS and "NAME" in error.accepts:
        hint = f"; write [{token}] for a property of this name"
    elif token.type == "EQ" and before and before[-1].type == "EQ":
        hint = "; one = compares" if start == "filter" else "; one = sets"
    elif token.type == "STRING" and "NAME" in error.accepts and "INTEGER" not in error.accepts:
        hint = "; a name is written without quotes"
    elif token.type in ("TRUE", "FALSE") and before and before[-1].type == "_IS":
        hint = f"; write = {token}"
    return RuleError(f"expected {_words(error.accepts)}{after}, found {found}{hint}", position + 1)


def _makes_condition(token: Token, before: Sequence[Token], accepted: set[str]) -> bool:
    """Whether an unexpected word or sign of a condition is in the value of SET."""
    verb = next((token for token in reversed(before) if token.type in ("SET", "REMOVE")), None)
    if verb is None or verb.type == "REMOVE":
        return False
    return before[-1] not in (",", ";") if "SET" in accepted else token.type == "_NOT"


def _words(accepted: set[str]) -> str:
    """Return the accepted tokens in words."""
    words = []
    if "INTEGER" in accepted:
        words.append("a condition" if "_NOT" in accepted else "a value")
    elif "NAME" in accepted:
        words.append("the name of a property")
    if "SIGN" in accepted and "INTEGER" not in accepted:
        words.append("an operator")
    elif "_AND" in accepted:
        words.append("AND or OR")
    elif "EQ" in accepted:
        words.append("'='")
    elif "_IN" in accepted:
        words.append("IN or LIKE")
    elif "NULL" in accepted and "INTEGER" not in accepted:
        words.append("NULL or NOT NULL" if "_NOT" in accepted else "NULL")
    elif "_LPAR" in accepted and "INTEGER" not in accepted:
        words.append("'('")
    if "_COMMA" in accepted and "_RPAR" in accepted:
        words.append("','")
    if "_RPAR" in accepted:
        words.append("')'")
    if "SET" in accepted:
        words.append("SET or REMOVE")
    if "$END" in accepted:
        words.append("the end")
    return " or ".join(words)
