"""The syntax of a step: positional words, options, and their values.

Owns: the syntax, which scenarios/README.md describes. Must not know what a step does. The caller resolves
names with arguments, as `token(RCV, 0)`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

LookUp = Callable[[str, list[Any]], Any]
"""Resolves a name with its arguments."""

_ATOM = re.compile(r"[^\s,{}\[\]()=\"]+")
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")
_OPTION = re.compile(r"([a-z][a-z-]*)=(.*)", re.DOTALL)

_TYPES: dict[str, Callable[[str], Any]] = {
    "ubyte": lambda text: UByte(text),
    "ushort": lambda text: UShort(text),
    "uint": lambda text: UInt(text),
    "ulong": lambda text: ULong(text),
    "byte": lambda text: Byte(text),
    "short": lambda text: Short(text),
    "int": lambda text: Int(text),
    "long": lambda text: Long(text),
    "ts": lambda text: Timestamp(text),
    "float": lambda text: Float(text),
    "double": float,
    "char": lambda text: Char(text),
    "bin": bytes.fromhex,
    "uuid": uuid.UUID,
    "dec128": lambda text: Decimal128(bytes.fromhex(text)),
}
_ELEMENTS = {"array<long>": Long, "array<uuid>": uuid.UUID}
_CONSTANTS = {"null": None, "true": True, "false": False}


class BadWords(ValueError):
    """The text of a step has wrong syntax."""


def split(line: str) -> list[str]:
    """Split a step at the blanks that are not within quotes or brackets."""
    found, start, depth, quoted = [], 0, 0, False
    for at, sign in enumerate(line + " "):
        if sign == '"':
            quoted = not quoted
        elif not quoted and sign in "{[(":
            depth += 1
        elif not quoted and sign in "}])":
            depth -= 1
        elif sign == " " and not quoted and depth == 0:
            if at > start:
                found.append(line[start:at])
            start = at + 1
    if quoted or depth:
        raise BadWords(f"a quote or bracket is open in {line!r}")
    return found


def arrange(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Separate positional words from options."""
    plain: list[str] = []
    options: dict[str, str] = {}
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is None:
            plain.append(word)
        else:
            options[option[1]] = option[2]
    return plain, options


def expand(word: str) -> list[str]:
    """Expand a range: `p8..p10` is `p8 p9 p10`, and any other word itself."""
    found = _RANGE.fullmatch(word)
    if found is None or found[1] != found[3]:
        return [word]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[4]) + 1)]


def read(text: str, look_up: LookUp) -> Any:
    """Read a value. Raises: BadWords."""
    reader = _Reader(text, look_up)
    value = reader.value()
    reader.blanks()
    if reader.at != len(text):
        raise BadWords(f"not a value: {text!r}")
    return value


class _Reader:
    def __init__(self, text: str, look_up: LookUp) -> None:
        self.text = text
        self.at = 0
        self._look_up = look_up

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self) -> Any:
        self.blanks()
        sign = self._next()
        if sign == "{":
            return dict(self._several("}", self._pair))
        if sign == "[":
            return self._several("]", self.value)
        if sign == '"':
            end = self.text.index('"', self.at + 1)
            found = self.text[self.at + 1 : end]
            self.at = end + 1
            return found
        return self._atom()

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _several(self, end: str, read_one: Callable[[], Any]) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while True:
            self.blanks()
            if self._next() == end:
                self.at += 1
                return found
            if self._next() == ",":
                self.at += 1
                continue
            if not self._next():
                raise BadWords(f"{end!r} is missing in {self.text!r}")
            found.append(read_one())

    def _pair(self) -> tuple[Any, Any]:
        key = self.value()
        if self._next() != "=":
            raise BadWords(f"'=' is missing behind {key!r} in {self.text!r}")
        self.at += 1
        return key, self.value()

    def _atom(self) -> Any:
        found = _ATOM.match(self.text, self.at)
        if found is None:
            raise BadWords(f"a value is missing in {self.text!r}")
        self.at = found.end()
        word = found[0]
        if self._next() == "(":
            arguments = self._several(")", self.value)
            return Described(*arguments) if word == "described" else self._look_up(word, arguments)
        if word in _ELEMENTS:
            return Array(_ELEMENTS[word], self._several("]", self.value))
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if word.startswith(":"):
            return Symbol(word[1:])
        kind, colon, rest = word.partition(":")
        if colon and kind in _TYPES:
            return _TYPES[kind](rest)
        return int(word) if word.isdigit() else word
