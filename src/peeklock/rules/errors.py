"""Errors of a rule: at its definition, or for a message."""

from __future__ import annotations


class RuleError(Exception):
    """An invalid rule: the message says what is wrong, where, and what was expected."""

    def __init__(self, message: str, position: int | None = None) -> None:
        """`position` counts characters of the expression from 1; None = no single place."""
        super().__init__(message)
        self.position = position


class EvaluationError(Exception):
    """A filter or action that cannot be evaluated for one message; the message says why (P-04)."""
