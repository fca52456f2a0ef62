"""What can be wrong with a rule: at its definition, or at a message.

Owns: the two kinds of errors. Must not know: how a client is told.
"""

from __future__ import annotations


class RuleError(Exception):
    """A rule that cannot be: the message says what, where, and what was expected."""

    def __init__(self, message: str, position: int | None = None) -> None:
        """`position` counts characters of the expression from 1; None where it is not about one place."""
        super().__init__(message)
        self.position = position


class EvaluationError(Exception):
    """A filter or action that cannot be evaluated for one message; the message says why (P-04)."""
