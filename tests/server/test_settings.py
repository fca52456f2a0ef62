"""What follows from the settings of a broker."""

from __future__ import annotations

import pytest

from peeklock.server.settings import HISTORY, Settings


@pytest.mark.parametrize(
    ("auth", "given", "size"),
    [
        (frozenset(), None, HISTORY),
        (frozenset({"sas"}), None, 0),
        (frozenset({"off"}), None, 0),
        (frozenset({"sas"}), 10, 10),
        (frozenset(), 0, 0),
    ],
)
def test_a_history_is_kept_in_development_mode_or_when_asked_for(
    auth: frozenset[str], given: int | None, size: int
) -> None:
    settings: dict[str, object] = {"auth": auth, "history": given}
    made = Settings(None, None, "localhost", 0, 0, "memory", None, None, "standard", None, **settings)  # type: ignore[arg-type]  # keyword arguments of a table
    assert made.history_size == size
