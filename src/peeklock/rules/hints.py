"""Hints for words, quotes and signs of other languages that this one lacks: what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lark import Token

from peeklock.rules.errors import RuleError

SHOWN_MAX = 80
"""Characters of corrected text in a message."""

FUNCTIONS = frozenset(["newid", "property", "p", "exists"])
"""In lower case."""

_PATTERNS = "there is no {}; texts are compared with =, IN and LIKE, and capitals always count"
_NO_TIME = "there are no constants of time; give a parameter, such as @day"
_CASE = "there is no CASE; make a rule for each case, or use AND and OR"
_NO_BETWEEN = "there is no BETWEEN; write a >= 1 AND a <= 3"
_BOUND = r"('[^']*'|[-+]?[@\w.]+)"
_BETWEEN = re.compile(
    rf"((?:\w+\.)?(?:\[[^]]*]|\w+))\s+(NOT\s+)?BETWEEN\s+{_BOUND}\s+AND\s+{_BOUND}", re.IGNORECASE
)

_WORDS = {
    "XOR": "there is no {}; write (a OR b) AND NOT (a AND b)",
    "MOD": "there is no {}; write %, as in a % 2",
    "DIV": "there is no {}; write /, which cuts integers towards zero",
    "CASE": _CASE,
    "WHEN": _CASE,
    "THEN": _CASE,
    "ELSE": _CASE,
    "IF": _CASE.replace("CASE", "{}"),
    "IIF": _CASE.replace("CASE", "{}"),
    **dict.fromkeys(["ILIKE", "RLIKE", "REGEXP", "SIMILAR", "GLOB", "COLLATE"], _PATTERNS),
    "CONTAINS": "there is no {}; write a LIKE '%text%'",
    "STARTSWITH": "there is no {}; write a LIKE 'text%'",
    "ENDSWITH": "there is no {}; write a LIKE '%text'",
}
"""Words between or before values, in capitals."""

_FILTER = "there is no {}; a filter is only a condition, such as color = 'blue'"
_ACTION = "there is no {}; an action is made of SET and REMOVE"
_OF_ACTIONS = "{} belongs to an action; a filter is a condition, such as color = 'blue'"
_STATEMENTS = ["SELECT", "FROM", "WHERE", "UPDATE", "DELETE", "INSERT", "DROP", "ORDER", "GROUP", "HAVING"]

_WORDS_OF = {
    "filter": {**_WORDS, **dict.fromkeys(_STATEMENTS, _FILTER), "SET": _OF_ACTIONS, "REMOVE": _OF_ACTIONS},
    "action": {
        **_WORDS,
        **dict.fromkeys(_STATEMENTS, _ACTION),
        "WHERE": "there is no {} in an action; the filter of its rule says which messages it changes",
    },
}
_OPENING = frozenset(["WHERE", "UPDATE", "DELETE", "INSERT", "DROP", "SET", "REMOVE", "CASE", "IF"])
"""Words that parse as a property, so that the token after them is unexpected."""
_TIMES = frozenset(["DATE", "TIME", "DATETIME", "TIMESTAMP", "INTERVAL"])

_FUNCTIONS_ELSEWHERE = {
    **dict.fromkeys(["ISNULL", "IFNULL", "NVL", "COALESCE"], "write a IS NULL OR ..."),
    **dict.fromkeys(
        ["CAST", "CONVERT"], "kinds do not change, but '' + a makes a text of a number or a GUID"
    ),
    **dict.fromkeys(["UPPER", "LOWER", "UCASE", "LCASE"], "capitals always count"),
    **dict.fromkeys(["SUBSTRING", "CHARINDEX", "LEFT", "RIGHT"], "LIKE looks into a text"),
    **dict.fromkeys(["NOW", "GETDATE", "GETUTCDATE"], "the time of a message is sys.EnqueuedTimeUtc"),
    "CONCAT": "texts are joined by +",
}

_QUOTES = frozenset("\u2018\u2019\u201a\u201b\u2032\u00b4`\u201c\u201d\u201e\u201f\u00ab\u00bb")
"""Quotes of editors and other languages."""
_UNFINISHED = {
    "'": "a text begins here whose closing ' is missing; a ' within a text is written twice",
    '"': 'a name begins here whose closing " is missing',
    "[": "a name begins here whose closing ] is missing",
    "@": "expected the name of a parameter after '@'",
}
_SIGNS = {
    "--": "there are no comments, and -- begins none; write '- -' or parentheses for a minus of a minus",
    "||": "there is no '||'; texts are joined by +, conditions by OR",
    "&": "expected an operator, found '&'; write AND",
    "|": "expected an operator, found '|'; write OR",
    "!": "expected an operator, found '!'; write NOT, or <> for a comparison",
}


def unreadable(text: str, position: int) -> RuleError:
    """Return the error of a character that begins no token; positions count from 0 here."""
    while text[position].isspace():
        position += 1
    character = text[position]
    what = _SIGNS.get(text[position : position + 2]) or _SIGNS.get(character) or _UNFINISHED.get(character)
    if character in _QUOTES:
        what = f"the quote {character} has no meaning; write ' before and after a text"
    elif character == "'" and (quote := next((one for one in text[position:] if one in _QUOTES), None)):
        what = f"a text begins here whose closing ' is missing; {quote} does not close it"
    return RuleError(what or f"the character {character!r} has no meaning", position + 1)


def unknown_function(start: str, name: str, position: int) -> RuleError:
    """Return the error of an unknown function, or of a word that other languages write before parentheses."""
    word = name.upper()
    if word in _WORDS_OF[start]:
        return _no_word(start, name, position)
    if word == "BETWEEN":
        return RuleError(_NO_BETWEEN, position + 1)
    hint = _FUNCTIONS_ELSEWHERE.get(word)
    return RuleError(
        f"there is no function {name!r}, only newid(), property(name), p(name) and EXISTS(property)"
        + ("" if hint is None else f"; {hint}"),
        position + 1,
    )


def unexpected(start: str, text: str, token: Token, before: Sequence[Token]) -> RuleError | None:
    """Return the error, with a hint, of an unexpected token or of the one before it; None without a hint."""
    assert token.start_pos is not None
    last = before[-1] if before else None
    selects = before and start == "filter" and before[0].upper() == "SELECT"
    if selects and (len(before) == 1 or before[-1].upper() == "FROM"):
        return _no_word(start, before[0], before[0].start_pos or 0)
    if token.type == "NAME":
        if token.upper() == "BETWEEN":
            return RuleError(_instead_of_between(text, token.start_pos), token.start_pos + 1)
        if token.upper() in _WORDS_OF[start]:
            return _no_word(start, token, token.start_pos)
    if last is None or last.start_pos is None:
        return None
    adjacent = last.end_pos == token.start_pos
    if last == "/" and adjacent and token in ("/", "*"):
        return RuleError(f"there are no comments, and /{token} begins none", last.start_pos + 1)
    if last.type == "STRING" and adjacent and (token[0].isalnum() or token[0] == "_"):
        return RuleError(
            "the text ends here; a ' within a text is written twice, as in 'it''s'", last.end_pos
        )
    if last.type == "NAME":
        return _after_name(start, text, token, last, adjacent)
    if start == "action" and last in (",", ";") and token.type in ("NAME", "DELIMITED"):
        return _repeated(text, token, before)
    return None


def _after_name(start: str, text: str, token: Token, last: Token, adjacent: bool) -> RuleError | None:
    assert last.start_pos is not None
    position, word = last.start_pos, last.upper()
    if word == "EXISTS" and token.type in ("NAME", "DELIMITED", "STRING"):
        named = re.match(r"[\w.]+", text[token.start_pos :])
        asked = named[0] if named else "name"
        return RuleError(f"EXISTS takes a property in parentheses; write EXISTS({asked})", position + 1)
    if token.type == "STRING":
        if word == "N" and adjacent:
            return RuleError(f"a text has no N before it; write {token}", position + 1)
        if word in _TIMES:
            return RuleError(_NO_TIME, position + 1)
    if word in _OPENING and word in _WORDS_OF[start]:
        return _no_word(start, last, position)
    return None


def _no_word(start: str, word: str, position: int) -> RuleError:
    return RuleError(_WORDS_OF[start][word.upper()].format(word.upper()), position + 1)


def _instead_of_between(text: str, position: int) -> str:
    found = next((one for one in _BETWEEN.finditer(text) if one.start() < position < one.end()), None)
    if found is None or found.end() - found.start() > SHOWN_MAX:
        return _NO_BETWEEN
    value, negated, low, high = found.groups()
    if negated:
        return f"there is no BETWEEN; write ({value} < {low} OR {value} > {high})"
    return f"there is no BETWEEN; write {value} >= {low} AND {value} <= {high}"


def _repeated(text: str, token: Token, before: Sequence[Token]) -> RuleError:
    """Return the error of a statement without keyword, with the corrected text if it is short."""
    assert token.start_pos is not None
    verb = next(one for one in reversed(before) if one.type in ("SET", "REMOVE"))
    rest = re.compile(r"(?:'[^']*'|[^,;'])*").match(text, token.start_pos)
    assert rest is not None
    keyword = "SET" if "=" in rest[0] else "REMOVE"
    corrected = f"{text[verb.start_pos : token.start_pos]}{keyword} {rest[0].strip()}"
    shown = f"; write {corrected}" if len(corrected) <= SHOWN_MAX else ""
    return RuleError(f"each statement begins with SET or REMOVE{shown}", token.start_pos + 1)
