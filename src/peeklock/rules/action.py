"""Actions: changes to the copy of a message that matched.

Statements run in order, and each sees the changes of those before it.
Source: wire contract 9.4; Learn "Subscription Rule SQL Action Syntax". Values of system properties: our
choice, docs/choices.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

from peeklock.rules.ast import Property, Remove, Set, Statement
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import (
    SPELLED,
    Fixed,
    Parameters,
    as_closure,
    bind,
    compile_expression,
    system_name,
)
from peeklock.rules.filters import SqlAction, Value
from peeklock.rules.parser import located, parse_action
from peeklock.rules.subject import ID_LENGTH_MAX, Subject
from peeklock.rules.values import DURATION, TEXT, TIME, kind

_IDS = {"messageid", "sessionid", "replytosessionid", "partitionkey", "viapartitionkey"}
_TEXTS = _IDS | {"label", "to", "replyto", "correlationid", "contenttype"}
_KINDS = {"timetolive": DURATION, "scheduledenqueuetimeutc": TIME}
"""Kinds of those that are not texts."""
WRITABLE = _TEXTS | set(_KINDS)
"""Names as in `Subject.system`."""
KEPT = "messageid"
"""Can be changed but not removed: duplicate detection needs it."""


@dataclass(slots=True)
class ActionResult:
    """The changes of an action."""

    user: dict[str, Value | None] = field(default_factory=dict)
    """Application properties that are set, spelled as in the message, else as first in the action."""
    removed: list[str] = field(default_factory=list)
    """Application properties that are removed, spelled as in the message."""
    system: dict[str, Value | None] = field(default_factory=dict)
    """System properties that are set, by their names in `Subject.system`; None = cleared."""


Step: TypeAlias = Callable[["_Working"], None]


class CompiledAction:
    """An action, ready for use; `compile_action` makes it."""

    __slots__ = ("_steps",)

    def __init__(self, steps: list[Step]) -> None:
        """Make an action of compiled statements."""
        self._steps = steps

    def apply(self, subject: Subject) -> ActionResult:
        """Return the changes to a message, which itself stays unchanged.

        Raises:
            EvaluationError: a value cannot be computed, or does not fit its system property.
        """
        working = _Working(subject)
        for step in self._steps:
            step(working)
        return working.result


def compile_action(action: SqlAction) -> CompiledAction:
    """Compile an action. Raises: RuleError."""
    statements = parse_action(action.expression)
    parameters = bind(action.parameters)
    try:
        return CompiledAction([_step(statement, parameters) for statement in statements])
    except RuleError as error:
        raise located(error, action.expression) from None


def _step(statement: Statement, parameters: Parameters) -> Step:
    target = statement.property
    system = system_name(target) if target.scope == "sys" else None
    match statement:
        case Remove():
            if system is None:
                return lambda working: working.remove(target.name)
            if system not in WRITABLE or system == KEPT:
                raise RuleError(f"the system property {target.name!r} cannot be removed", target.position)
            return lambda working: working.set_system(system, None)
        case Set(value=expression):
            compiled = compile_expression(expression, parameters)
            value_of = as_closure(compiled)
            if system is None:
                return lambda working: working.set_user(target.name, value_of(working))
            if system not in WRITABLE:
                raise RuleError(f"the system property {target.name!r} cannot be set", target.position)
            if isinstance(compiled, Fixed):
                _check_fixed(system, compiled, target, expression.position)
            return lambda working: working.set_system(system, fitting(system, value_of(working)))


def _check_fixed(system: str, compiled: Fixed, target: Property, position: int) -> None:
    try:
        fitting(system, compiled.value)
    except EvaluationError as error:
        wanted = _KINDS.get(system)
        hint = (
            "" if wanted is None or kind(compiled.value) == wanted else f"; {wanted} is given as a parameter"
        )
        raise RuleError(f"{error}{hint}", position) from None


def fitting(system: str, value: Value | None) -> Value | None:
    """Convert a value to that of a system property.

    Raises:
        EvaluationError: it is of another kind, or out of range.
    """
    name = f"sys.{SPELLED[system]}"
    if value is None:
        if system == KEPT:
            raise EvaluationError(f"{name} cannot be set to NULL")
        return None
    wanted = _KINDS.get(system, TEXT)
    if system == "timetolive" and isinstance(value, timedelta) and value <= timedelta():
        raise EvaluationError(f"{name} must be positive, found {value}")
    if wanted == TEXT:
        if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
            value = str(value)
        if system in _IDS and isinstance(value, str) and len(value) > ID_LENGTH_MAX:
            raise EvaluationError(
                f"the value for {name} has {len(value)} characters; the limit is {ID_LENGTH_MAX}"
            )
    if kind(value) != wanted:
        raise EvaluationError(f"{name} takes {wanted}, found {kind(value)}")
    return value


class _Working:
    """The message after the statements so far: the `Subject` of the next one, and the result."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.result = ActionResult()
        self._changed: dict[str, Value | None] = {}
        self._gone: set[str] = set()
        self._spelled: dict[str, str] = {}
        self.user: Mapping[str, Value] = _Layered(self._changed, subject.user)
        self.system: Mapping[str, Value] = _Layered(self.result.system, subject.system)
        self.new_id = subject.new_id

    def has_user(self, folded_name: str) -> bool:
        if folded_name in self._changed:
            return folded_name not in self._gone
        return self._subject.has_user(folded_name)

    def user_name(self, folded_name: str) -> str | None:
        return self._spelled.get(folded_name) or self._subject.user_name(folded_name)

    def set_user(self, name: str, value: Value | None) -> None:
        """Set an application property; None sets it to null."""
        folded = name.lower()
        spelled = self.user_name(folded) or name
        present = self.user.get(folded)
        if type(value) is int and isinstance(present, float | Decimal):
            # "SET performs implicit conversion if possible": C#'s, from an integer to the present type.
            value = type(present)(value)
        self._spelled[folded] = spelled
        self._changed[folded] = value
        self._gone.discard(folded)
        self.result.user[spelled] = value
        if spelled in self.result.removed:
            self.result.removed.remove(spelled)

    def remove(self, name: str) -> None:
        """Remove an application property, if there is one."""
        folded = name.lower()
        if not self.has_user(folded):
            return
        in_message = self._subject.user_name(folded)
        self.result.user.pop(self._spelled.pop(folded, ""), None)
        self._changed[folded] = None
        self._gone.add(folded)
        if in_message is not None:
            self.result.removed.append(in_message)

    def set_system(self, name: str, value: Value | None) -> None:
        """Set a system property to a value that fits it; None clears it."""
        self.result.system[name] = value


class _Layered(Mapping[str, Value]):
    """Changed values, None for removed ones, over those before."""

    def __init__(self, changed: Mapping[str, Value | None], base: Mapping[str, Value]) -> None:
        self._changed = changed
        self._base = base

    def __getitem__(self, name: str) -> Value:
        value = self._changed[name] if name in self._changed else self._base[name]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, value in self._changed.items() if value is not None)
        yield from (name for name in self._base if name not in self._changed)

    def __len__(self) -> int:
        return sum(1 for _ in self)
