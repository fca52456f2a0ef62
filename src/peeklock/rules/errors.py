"""Errors of a rule: at its definition, or for a message."""

from __future__ import annotations


class RuleError(Exception):
    """An invalid rule: the message says what is wrong, where, and what was expected."""

    def __init__(self, message: str, position: int | None = None, what: str = "") -> None:
        """See the message, which may show a place.

        Args:
            position: counts characters of the expression from 1; None = no single place.
            what: what is wrong, without the place; empty = the message.
        """
        super().__init__(message)
        self.position = position
        self.what = what or message


class EvaluationError(Exception):
    """A filter or action that cannot be evaluated for one message; the message says why (P-04)."""
