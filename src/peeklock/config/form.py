"""Strict reading of JSON; each mistake is reported by its path.

A null counts as an absent key, except in application properties and parameters, where it is a value.
Comments, `//` to the end of a line and between `/*` and `*/`, are ignored: the emulator's own file has some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

PROBLEMS_MAX = 50
"""Problems in one message. Our choice: more do not help."""


class ConfigError(Exception):
    """The file has faults: a line for each, beginning with its JSON path."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems[:PROBLEMS_MAX]))
        self.problems = problems


class Object(dict[str, Any]):
    """A JSON object that remembers repeated keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice: list[str] = []
        if len(self) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in self.twice:
                    self.twice.append(key)
                seen.add(key)


def load(data: bytes) -> Any:
    """Return JSON with comments as values; objects are `Object`. Raises: ConfigError."""
    try:
        text = data.decode("utf-8-sig")
        return json.loads(_without_comments(text), object_pairs_hook=Object, parse_constant=_no_constant)
    except UnicodeDecodeError as failure:
        raise ConfigError(f"byte {failure.start}: not UTF-8") from failure
    except json.JSONDecodeError as failure:
        raise ConfigError(
            f"line {failure.lineno} column {failure.colno}: not JSON: {failure.msg}"
        ) from failure
    except RecursionError as failure:
        raise ConfigError("not JSON: nested too deeply") from failure
    except ValueError as failure:
        raise ConfigError(f"not JSON: {failure}") from failure


# A string, closed or not, matches first, so that a comment in it is none.
_STRING_OR_COMMENT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|//[^\r\n]*+|/\*.*?\*/', re.DOTALL)
_SHOWS = re.compile(r"[^\r\n]")


def _without_comments(text: str) -> str:
    """Replace comments by spaces; the rest keeps its line and column."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else _SHOWS.sub(" ", match[0])

    return _STRING_OR_COMMENT.sub(blank, text) if "//" in text or "/*" in text else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


class Form:
    """Checks the form of values, and collects the problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def problem(self, path: str, what: str) -> None:
        self.problems.append(f"{path}: {what}" if path else f"the file: {what}")

    def object(
        self,
        value: Any,
        path: str,
        known: tuple[str, ...],
        required: tuple[str, ...] = (),
        other_words: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, Any] | None:
        """Return an object after a check of its keys; None = it is not an object.

        An optional key with null is left out: serialisers write it for what is not set. `other_words` maps
        other names of a key, in lower case, to the key.
        """
        pairs = self.pairs(value, path)
        if pairs is None:
            return None
        for key in pairs:
            if key not in known:
                hint = _hint(key, known, other_words.get(key.lower()))
                self.problem(join(path, key), f"unknown key; {hint}")
        for key in required:
            if key not in pairs:
                self.problem(join(path, key), "missing")
        return {key: part for key, part in pairs.items() if part is not None or key in required}

    def pairs(self, value: Any, path: str) -> Mapping[str, Any] | None:
        """Return an object with any keys; None = it is not an object."""
        if not isinstance(value, Object):
            self.problem(path, f"{shown(value)} is not an object in braces")
            return None
        for key in value.twice:
            self.problem(join(path, key), "given more than once")
        return value

    def array(self, value: Any, path: str) -> list[Any] | None:
        if not isinstance(value, list):
            self.problem(path, f"{shown(value)} is not a list in brackets")
            return None
        return value

    def value(self, read: Callable[[Any], Any], given: Any, path: str) -> Any:
        """Return what `read` makes of a value; None = it raised ValueError."""
        try:
            return read(given)
        except ValueError as failure:
            self.problem(path, str(failure))
            return None

    def name(
        self, holder: Mapping[str, Any], path: str, is_name: Callable[[str], bool], rule: str
    ) -> str | None:
        """Return the `Name` in an object; None = it is wrong, or missing, which is reported already."""
        if "Name" not in holder:
            return None
        name = holder["Name"]
        if not isinstance(name, str) or not is_name(name):
            self.problem(f"{path}.Name", f"{shown(name)} is not {rule}")
            return None
        return name


class Taken:
    """Names in use, in any case."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._first_at: dict[str, str] = {}

    def take(self, name: str, path: str, within: str = "") -> None:
        """Add a name, or report where it is used already; names `within` something are separate."""
        other = self._first_at.setdefault(f"{within}{name}".lower(), path)
        if other != path:
            self._form.problem(f"{path}.Name", f"{name!r} is the name of {other} already")


def join(path: str, key: str) -> str:
    """Return the path of a key of an object."""
    plain = key if re.fullmatch(r"[A-Za-z0-9_$-]{1,100}", key) else json.dumps(key[:100])
    return f"{path}.{plain}" if path else plain


def shown(value: Any) -> str:
    """Return a JSON value in short form."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "...")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


def none_of(value: Any, known: Collection[str]) -> str:
    """Return that a value is unknown, and which known one may be meant."""
    problem = f"{shown(value)} is none of {', '.join(map(repr, known))}"
    for name in known:
        if isinstance(value, str) and value.lower() == name.lower():
            problem += f"; did you mean {name!r}? The case matters"
    return problem


def _hint(key: str, known: tuple[str, ...], meant: str | None) -> str:
    from difflib import get_close_matches

    if meant is not None:
        return f"did you mean {meant}?"

    near = get_close_matches(key[:100].lower(), [name.lower() for name in known], n=1)
    for name in known:
        if near and name.lower() == near[0]:
            return f"did you mean {name}?"
    return f"known here: {', '.join(known)}"
