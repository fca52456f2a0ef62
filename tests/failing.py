"""The line by which a step that is not pytest says what failed: `.ci/run` repeats it beside pytest's own.

Owns: its form. Knows nothing of steps.
"""

from __future__ import annotations

TEXT_CHARACTERS_MAX = 3000
"""Longest text of a failure: what is left of a run's output is its end. Our choice."""


def failed_line(what: str, failure: BaseException | str) -> str:
    """Return one line that starts with `FAILED `, names what failed, and says why. The middle of a long text
    is left out."""
    text = failure if isinstance(failure, str) else f"{type(failure).__name__}: {failure}"
    text = " | ".join(text.splitlines())
    if len(text) > TEXT_CHARACTERS_MAX:
        half = TEXT_CHARACTERS_MAX // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return f"FAILED {what}: {text}"
