"""A small language of rules with its own evaluator: what the simulation's rules mean.

Owns: conditions and statements, their text for the broker, and their effect on a message. Must not know:
`peeklock.rules`' evaluation, subscriptions. The language has only what the documents define without doubt; a
condition that cannot be evaluated appears alone, or behind one equality. Source: wire contract 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter

COLORS = ("red", "green", "blue", "grey")
LABELS = ("news", "mail")
SIZES = (0, 1, 2, 3, 4)
MARK = "mark"
RULE_NAME = "RuleName"
PROPERTIES = ("color", "size", MARK, RULE_NAME.lower())
"""Application properties that rules read or write, in lower case; case makes no difference."""


class Undecidable(Exception):
    """Raised on a division by zero."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What rules see of a message."""

    properties: dict[str, str | int | None] = field(default_factory=dict)
    label: str | None = None
    session_id: str | None = None

    def value(self, name: str) -> str | int | None:
        return self.label if name == "sys.Label" else self.properties.get(self.spelled(name))

    def spelled(self, name: str) -> str:
        """Return a property's name as the message spells it, or as it is given where the message has none."""
        return next((known for known in self.properties if known.lower() == name.lower()), name)


class Condition(Protocol):
    """A predicate over a message."""

    def text(self) -> str:
        """Return the condition in SQL."""

    def judge(self, traits: Traits) -> bool | None:
        """Return whether it is true of a message; None = unknown. Raises: Undecidable."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A property compared with a constant: unknown where it is missing."""

    name: str
    operator: str
    value: str | int

    def text(self) -> str:
        return f"{self.name} {self.operator} {_literal(self.value)}"

    def judge(self, traits: Traits) -> bool | None:
        found = traits.value(self.name)
        if found is None:
            return None
        if self.operator == "=":
            return found == self.value
        if self.operator == "<>":
            return found != self.value
        assert isinstance(found, int)
        assert isinstance(self.value, int)
        return found >= self.value if self.operator == ">=" else found < self.value


@dataclass(frozen=True, slots=True)
class Among:
    """A property that equals one of several constants."""

    name: str
    values: tuple[str | int, ...]

    def text(self) -> str:
        return f"{self.name} IN ({', '.join(_literal(value) for value in self.values)})"

    def judge(self, traits: Traits) -> bool | None:
        found = traits.value(self.name)
        return None if found is None else found in self.values


@dataclass(frozen=True, slots=True)
class Begins:
    """A string with a prefix."""

    name: str
    start: str

    def text(self) -> str:
        return f"{self.name} LIKE '{self.start}%'"

    def judge(self, traits: Traits) -> bool | None:
        found = traits.value(self.name)
        return None if found is None else str(found).startswith(self.start)


@dataclass(frozen=True, slots=True)
class Missing:
    """A property that is absent or null."""

    name: str

    def text(self) -> str:
        return f"{self.name} IS NULL"

    def judge(self, traits: Traits) -> bool | None:
        return traits.value(self.name) is None


@dataclass(frozen=True, slots=True)
class Present:
    """A property that is present, possibly null."""

    name: str

    def text(self) -> str:
        return f"EXISTS({self.name})"

    def judge(self, traits: Traits) -> bool | None:
        return traits.spelled(self.name) in traits.properties


@dataclass(frozen=True, slots=True)
class Quotient:
    """A quotient of integers, undefined for a size of 0."""

    more_than: int

    def text(self) -> str:
        return f"12 / size > {self.more_than}"

    def judge(self, traits: Traits) -> bool | None:
        size = _twelfth(traits)
        return None if size is None else size > self.more_than


@dataclass(frozen=True, slots=True)
class Guarded:
    """A quotient behind an equality."""

    guard: Compared
    quotient: Quotient

    def text(self) -> str:
        return f"{self.guard.text()} AND {self.quotient.text()}"

    def judge(self, traits: Traits) -> bool | None:
        return self.quotient.judge(traits) if self.guard.judge(traits) else False


@dataclass(frozen=True, slots=True)
class Not:
    """The negation: unknown stays unknown."""

    inner: Condition

    def text(self) -> str:
        return f"NOT ({self.inner.text()})"

    def judge(self, traits: Traits) -> bool | None:
        found = self.inner.judge(traits)
        return None if found is None else not found


@dataclass(frozen=True, slots=True)
class Joined:
    """Two conditions, both or either, by the tables of three-valued logic."""

    operator: str
    left: Condition
    right: Condition

    def text(self) -> str:
        return f"({self.left.text()}) {self.operator} ({self.right.text()})"

    def judge(self, traits: Traits) -> bool | None:
        found = {self.left.judge(traits), self.right.judge(traits)}
        decides = self.operator == "OR"
        if decides in found:
            return decides
        return None if None in found else not decides


@dataclass(frozen=True, slots=True)
class Always:
    """Constant true, or false."""

    answer: bool

    def text(self) -> str:
        return "1 = 1" if self.answer else "1 = 0"

    def judge(self, traits: Traits) -> bool | None:
        return self.answer


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an action."""

    kind: str
    """`set`, `add` (1 to the size), `divide` (12 by it), `remove`, `label`, `session`."""
    name: str = ""
    value: str = ""

    def text(self) -> str:
        return {
            "set": f"SET {self.name} = '{self.value}'",
            "add": "SET size = size + 1",
            "divide": "SET size = 12 / size",
            "remove": f"REMOVE {self.name}",
            "label": f"SET sys.Label = '{self.value}'",
            "session": f"SET sys.SessionId = '{self.value}'",
        }[self.kind]

    def apply(self, traits: Traits, message: Traits) -> Traits:
        """Change what rules see of a copy; names are spelled as in `message`. Raises: Undecidable."""
        properties = dict(traits.properties)
        name, size_name = message.spelled(self.name), message.spelled("size")
        if self.kind == "label":
            return replace(traits, label=self.value)
        if self.kind == "session":
            return replace(traits, session_id=self.value)
        if self.kind == "remove":
            properties.pop(name, None)
        elif self.kind == "set":
            properties[name] = self.value
        elif self.kind == "divide":
            properties[size_name] = _twelfth(traits)
        else:
            size = properties.get(size_name)
            properties[size_name] = None if size is None else int(size) + 1
        return replace(traits, properties=properties)


@dataclass(frozen=True, slots=True)
class Ruling:
    """A filter, and an optional action."""

    condition: Condition
    form: str
    """The form of the filter: `sql`, `correlation` or `plain` (the filters true and false)."""
    statements: tuple[Statement, ...] = ()

    def described(self, name: str) -> RuleDescription:
        """Return the rule for the broker."""
        action = SqlAction("; ".join(s.text() for s in self.statements)) if self.statements else None
        return RuleDescription(name, self._filter(), action)

    def _filter(self) -> Filter:
        condition = self.condition
        if self.form == "plain":
            assert isinstance(condition, Always)
            return TrueFilter() if condition.answer else FalseFilter()
        if self.form == "sql":
            return SqlFilter(condition.text())
        label: str | None = None
        properties: list[tuple[str, str | int]] = []
        for part in _parts(condition):
            if part.name == "sys.Label":
                label = str(part.value)
            else:
                properties.append((part.name, part.value))
        return CorrelationFilter(label=label, properties=tuple(properties))

    def act(self, traits: Traits, name: str) -> Traits:
        """Change what rules see of a copy, which carries the rule's name. Raises: Undecidable."""
        message = traits
        for statement in self.statements:
            traits = statement.apply(traits, message)
        return replace(traits, properties={**traits.properties, RULE_NAME: name})


class Rulebook:
    """All rulings that were ever described, by their text."""

    def __init__(self) -> None:
        self._rulings: dict[tuple[object, ...], Ruling] = {}
        self.describe(Ruling(Always(True), "plain"), "")

    def describe(self, ruling: Ruling, name: str) -> RuleDescription:
        """Return a ruling's rule, and remember its meaning."""
        described = ruling.described(name)
        self._rulings[_reading(described)] = ruling
        return described

    def meaning(self, rule: RuleDescription) -> Ruling | None:
        """Return the meaning of a rule; None when it was never described."""
        return self._rulings.get(_reading(rule))


def ruled(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the application properties that rules read or write, as they are spelled."""
    return {name: value for name, value in properties.items() if name.lower() in PROPERTIES}


def same(one: RuleDescription, other: RuleDescription) -> bool:
    """Return whether two rules are the same under the same name."""
    return one.name.lower() == other.name.lower() and _reading(one) == _reading(other)


def draw(random: Random, *, sessions: bool) -> Ruling:
    """Draw a ruling. `sessions`: an action may move the copy into another session."""
    roll = random.random()
    form = "sql"
    condition: Condition
    if roll < 0.25:
        condition = Always(random.random() < 0.9)
        form = random.choice(("plain", "sql"))
    elif roll < 0.45:
        condition, form = _equality(random), "correlation"
        if random.random() < 0.4:
            other = _equality(random)
            if other.name.lower() != condition.name.lower():
                condition = Joined("AND", condition, other)
    elif roll < 0.62:
        quotient = Quotient(random.choice((2, 5)))
        condition = quotient if random.random() < 0.6 else Guarded(_equality(random), quotient)
    else:
        condition = _condition(random, 2)
    statements: tuple[Statement, ...] = ()
    if random.random() < 0.35:
        statements = tuple(_statement(random, sessions) for _ in range(random.choice((1, 1, 2))))
    return Ruling(condition, form, statements)


def draw_traits(random: Random, session_id: str | None) -> Traits:
    """Draw what rules see of a message."""
    properties: dict[str, str | int | None] = {}
    if (roll := random.random()) < 0.8:
        properties["COLOR" if roll < 0.1 else "Color" if roll < 0.2 else "color"] = random.choice(COLORS)
    if random.random() < 0.7:
        properties["size"] = random.choice((0, *SIZES))
    return Traits(properties, random.choice((None, *LABELS)), session_id)


def _equality(random: Random) -> Compared:
    roll = random.random()
    if roll < 0.5:
        return Compared("Color" if roll < 0.2 else "color", "=", random.choice(COLORS))
    if roll < 0.75:
        return Compared("sys.Label", "=", random.choice(LABELS))
    return Compared("SIZE" if roll < 0.8 else "size", "=", random.choice(SIZES))


def _condition(random: Random, depth: int) -> Condition:
    roll = random.random()
    if depth and roll < 0.4:
        operator = random.choice(("AND", "OR"))
        return Joined(operator, _condition(random, depth - 1), _condition(random, depth - 1))
    if depth and roll < 0.55:
        return Not(_condition(random, depth - 1))
    return random.choice(
        (
            _equality(random),
            Compared("color", "<>", random.choice(COLORS)),
            Compared("size", random.choice((">=", "<")), random.choice(SIZES)),
            Among("color", tuple(random.sample(COLORS, 2))),
            Among("size", tuple(random.sample(SIZES, 2))),
            Begins("color", "gr"),
            Missing(random.choice(("color", "size"))),
            Present(random.choice(("color", "size", MARK))),
        )
    )


def _statement(random: Random, sessions: bool) -> Statement:
    roll = random.random()
    if sessions and roll < 0.2:
        return Statement("session", value=random.choice(("red", "green")))
    if roll < 0.5:
        return Statement("set", random.choice(("color", MARK)), random.choice(COLORS))
    if roll < 0.65:
        return Statement("add")
    if roll < 0.75:
        return Statement("divide")
    if roll < 0.9:
        return Statement("remove", random.choice(("color", "size", MARK)))
    return Statement("label", value=random.choice(LABELS))


def _twelfth(traits: Traits) -> int | None:
    size = traits.value("size")
    if size == 0:
        raise Undecidable
    return None if size is None else 12 // int(size)


def _parts(condition: Condition) -> list[Compared]:
    if isinstance(condition, Joined):
        return [*_parts(condition.left), *_parts(condition.right)]
    assert isinstance(condition, Compared)
    return [condition]


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


def _reading(rule: RuleDescription) -> tuple[object, ...]:
    found = rule.filter
    fields: tuple[object, ...] = ()
    if isinstance(found, SqlFilter):
        fields = (found.expression,)
    elif isinstance(found, CorrelationFilter):
        fields = (found.label, tuple(sorted(found.properties)))
    return type(found), *fields, None if rule.action is None else rule.action.expression
