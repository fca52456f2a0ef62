"""The grammar of filters and actions, and the parser that lark builds from it.

`parser` imports this module with the first text: lark takes longer to load than the broker may take to start.

Predicates and expressions share one ladder of rules, since `(a)` can begin either and one token of look-ahead
cannot tell; the builder of the tree checks which is legal where.
Source: wire contract 9.3, 9.4; Learn "Subscription Rule SQL Filter Syntax", "Subscription Rule SQL Action
Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer
from lark.lexer import Lexer, LexerState

from peeklock.rules.ast import (
    CONDITIONS,
    FLEXIBLE,
    RESERVED,
    RESERVED_IN_ACTIONS,
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NamedProperty,
    Negative,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Positive,
    Predicate,
    Property,
    Remove,
    Scope,
    Set,
    Statement,
)
from peeklock.rules.errors import RuleError
from peeklock.rules.hints import FUNCTIONS, unknown_function, unreadable

GRAMMAR = r"""
filter: disjunction
action: statement ((_SEMICOLON | _COMMA | _SEMICOLON _COMMA)? statement)* _SEMICOLON?

statement: SET property EQ sum -> assignment
    | REMOVE property -> removal

?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: _NOT negation -> negated
    | test
?test: sum
    | sum (EQ | COMPARE) sum -> comparison
    | sum _IS NULL -> is_null
    | sum _IS _NOT NULL -> is_not_null
    | sum _IN _LPAR sum (_COMMA sum)* _RPAR -> is_in
    | sum _NOT _IN _LPAR sum (_COMMA sum)* _RPAR -> not_in
    | sum _LIKE sum (_ESCAPE sum)? -> like
    | sum _NOT _LIKE sum (_ESCAPE sum)? -> not_like
?sum: product (SIGN product)*
?product: unary (TIMES unary)*
?unary: SIGN unary -> signed
    | INTEGER -> integer
    | DECIMAL -> decimal
    | STRING -> string
    | NULL -> null
    | TRUE -> true
    | FALSE -> false
    | PARAMETER -> parameter
    | property
    | NAME _LPAR (disjunction (_COMMA disjunction)*)? _RPAR -> call
    | _LPAR disjunction _RPAR
property: NAME | DELIMITED | NAME DOT NAME | NAME DOT DELIMITED

%declare NAME DELIMITED INTEGER DECIMAL STRING PARAMETER DOT EQ COMPARE SIGN TIMES TRUE FALSE NULL SET REMOVE
%declare _SEMICOLON _COMMA _OR _AND _NOT _IS _IN _LIKE _ESCAPE _LPAR _RPAR
"""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<NAME>[^\W\d]\w*)
    | (?P<STRING>'[^']*(?:\'\'[^']*)*')
    | (?P<DECIMAL>\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<INTEGER>\d+)
    | (?P<COMPARE><>|!=|<=|>=|<|>)
    | (?P<EQ>=)
    | (?P<_LPAR>\()
    | (?P<_RPAR>\))
    | (?P<_COMMA>,)
    | (?P<DOT>\.)
    | (?P<SIGN>\+|-(?!-))
    | (?P<TIMES>[*/%])
    | (?P<PARAMETER>@\w+)
    | (?P<DELIMITED>\[[^]]*(?:]][^]]*)*]|"[^"]*(?:""[^"]*)*")
    | (?P<_SEMICOLON>;)
    | (?P<_END>$)
    )""",
    re.VERBOSE,
)
_CALL = re.compile(r"\s*\(")


def _keywords(reserved: frozenset[str]) -> dict[str, str]:
    """Return the token of each keyword; lark omits those that begin with _ from the children."""
    kept = {"TRUE", "FALSE", "NULL", "SET", "REMOVE"}
    return {word: word if word in kept else f"_{word}" for word in reserved}


_KEYWORDS = {"filter": _keywords(RESERVED), "action": _keywords(RESERVED_IN_ACTIONS)}


def _tokens(start_rule: str, text: str) -> Iterator[Token]:
    """Yield the tokens of a text. Positions count from 0 here, as in lark."""
    match, keywords = _TOKEN.match, _KEYWORDS[start_rule]
    position = 0
    while True:
        found = match(text, position)
        if found is None:
            raise unreadable(text, position)
        kind = found.lastgroup
        assert kind is not None
        if kind == "_END":
            return
        start, position = found.span(kind)
        value = found[kind]
        if kind == "NAME":
            kind = keywords.get(value.upper(), kind)
            if kind == "NAME" and _CALL.match(text, position) and value.lower() not in FUNCTIONS:
                raise unknown_function(start_rule, value, start)
        yield Token(kind, value, start, end_pos=position)


class _FilterLexer(Lexer):
    __future_interface__ = 2  # tells lark that `lex` takes its state

    start_rule = "filter"

    def __init__(self, _configuration: object) -> None:
        """Ignore lark's configuration."""

    def lex(self, lexer_state: LexerState, parser_state: object) -> Iterator[Token]:
        return _tokens(self.start_rule, lexer_state.text.text)


class _ActionLexer(_FilterLexer):
    start_rule = "action"


Children: TypeAlias = list[Any]


class _Builder(Transformer[Token, Any]):
    """Builds nodes; each method is named after its rule of the grammar."""

    def filter(self, children: Children) -> Predicate:
        (condition,) = children
        return _condition(condition, "expected")

    def action(self, children: Children) -> tuple[Statement, ...]:
        return tuple(children)

    def assignment(self, children: Children) -> Set:
        keyword, target, _, value = children
        return Set(target, _value(value, keyword), position=keyword.start_pos + 1)

    def removal(self, children: Children) -> Remove:
        keyword, target = children
        return Remove(target, position=keyword.start_pos + 1)

    def disjunction(self, children: Children) -> Or:
        terms: list[Predicate] = []
        for child in children:
            terms.extend(child.terms if isinstance(child, Or) else (_condition(child, "OR takes"),))
        return Or(tuple(terms), position=children[0].position)

    def conjunction(self, children: Children) -> And:
        terms: list[Predicate] = []
        for child in children:
            terms.extend(child.terms if isinstance(child, And) else (_condition(child, "AND takes"),))
        return And(tuple(terms), position=children[0].position)

    def negated(self, children: Children) -> Not:
        (operand,) = children
        return Not(_condition(operand, "NOT takes"), position=operand.position)

    def comparison(self, children: Children) -> Comparison:
        left, operator, right = children
        sign = "<>" if operator == "!=" else str(operator)
        return Comparison(sign, _value(left, operator), _value(right, operator), position=left.position)

    def is_null(self, children: Children) -> IsNull:
        operand, _ = children
        return IsNull(_property(operand, "IS NULL"), position=operand.position)

    def is_not_null(self, children: Children) -> Not:
        return _not(self.is_null(children))

    def is_in(self, children: Children) -> In:
        operand, *elements = [_value(child, "IN") for child in children]
        return In(operand, tuple(elements), position=operand.position)

    def not_in(self, children: Children) -> Not:
        return _not(self.is_in(children))

    def like(self, children: Children) -> Like:
        operand, pattern, *escape = [_value(child, "LIKE") for child in children]
        return Like(operand, pattern, *escape, position=operand.position)

    def not_like(self, children: Children) -> Not:
        return _not(self.like(children))

    def sum(self, children: Children) -> Arithmetic:
        first, *others = children
        pairs = tuple(
            (str(sign), _value(operand, sign))
            for sign, operand in zip(others[::2], others[1::2], strict=True)
        )
        position = first.position
        if isinstance(first, Arithmetic) and (first.rest[0][0] in "+-") == (pairs[0][0] in "+-"):
            return Arithmetic(first.first, first.rest + pairs, position=position)
        return Arithmetic(_value(first, others[0]), pairs, position=position)

    product = sum

    def signed(self, children: Children) -> Expression:
        sign, operand = children
        position = sign.start_pos + 1
        if isinstance(operand, Constant) and type(operand.value) in (int, float):
            assert isinstance(operand.value, int | float)
            return Constant(-operand.value if sign == "-" else operand.value, position=position)
        made = Negative if sign == "-" else Positive
        return made(_value(operand, sign), position=position)

    def integer(self, children: Children) -> Constant:
        return _literal(int(children[0]), children)

    def decimal(self, children: Children) -> Constant:
        return _literal(float(children[0]), children)

    def string(self, children: Children) -> Constant:
        return _literal(children[0][1:-1].replace("''", "'"), children)

    def true(self, children: Children) -> Constant:
        return _literal(True, children)

    def false(self, children: Children) -> Constant:
        return _literal(False, children)

    def null(self, children: Children) -> Constant:
        return _literal(None, children)

    def parameter(self, children: Children) -> Parameter:
        return Parameter(str(children[0]), position=children[0].start_pos + 1)

    def property(self, children: Children) -> Property:
        first, last = children[0], children[-1]
        name = str(last)
        if last.type == "DELIMITED":
            closing = "]" if name[0] == "[" else '"'
            name = name[1:-1].replace(closing * 2, closing)
            if not name:
                raise RuleError("a property needs a name; this one is empty", last.start_pos + 1)
        scope: Scope = "user"
        if first is not last:
            spelled = first.lower()
            if spelled == "sys":
                scope = "sys"
            elif spelled != "user":
                hint = f"write [{first}.{name}] for a property with a dot in its name"
                if spelled == "system":
                    hint = f"write sys.{name} for a system property"
                raise RuleError(
                    f"there is no scope {str(first)!r}, only sys and user; {hint}", first.start_pos + 1
                )
        return Property(scope, name, position=first.start_pos + 1)

    def call(self, children: Children) -> Node:
        name, *arguments = children
        position = name.start_pos + 1
        match name.lower(), arguments:
            case "newid", []:
                return NewId(position=position)
            case "property" | "p", [asked]:
                return NamedProperty(_value(asked, name), position=position)
            case "exists", [operand]:
                return Exists(_property(operand, "EXISTS"), position=position)
            case known, _:
                takes = "nothing" if known == "newid" else "one name"
                found = f"{len(arguments)} value{'' if len(arguments) == 1 else 's'}"
                raise RuleError(f"the function {str(name)!r} takes {takes}, found {found}", position)


def _literal(value: bool | int | float | str | None, children: Children) -> Constant:
    return Constant(value, position=children[0].start_pos + 1)


def _not(operand: Predicate) -> Not:
    return Not(operand, position=operand.position)


def _condition(node: Node, place: str) -> Predicate:
    if isinstance(node, CONDITIONS):
        return node
    if isinstance(node, FLEXIBLE) and not (
        isinstance(node, Constant) and node.value is not None and not isinstance(node.value, bool)
    ):
        return node
    raise RuleError(f"{place} a condition, such as color = 'blue', found a value", node.position)


def _value(node: Node, place: str) -> Expression:
    if isinstance(node, CONDITIONS):
        raise RuleError(f"{str(place)!r} takes values, found a condition", node.position)
    return node


def _property(node: Node, place: str) -> Property | NamedProperty:
    if isinstance(node, Property | NamedProperty):
        return node
    if isinstance(node, Constant) and isinstance(node.value, str):
        raise RuleError(f"{place} takes the name of a property, without quotes; found a text", node.position)
    raise RuleError(f"{place} takes the name of a property, found a value", node.position)


def make_parser(start: str) -> Lark:
    """Return the parser of a "filter" or an "action"."""
    return Lark(
        GRAMMAR,
        start=start,
        parser="lalr",
        lexer=_FilterLexer if start == "filter" else _ActionLexer,
        transformer=_Builder(visit_tokens=False),
        maybe_placeholders=False,
        propagate_positions=False,
    )


def tokens_before(start: str, text: str, position: int) -> list[Token]:
    """Return the tokens before `position`, counted from 0."""
    before = []
    for token in _tokens(start, text):
        if token.start_pos is None or token.start_pos >= position:
            break
        before.append(token)
    return before
