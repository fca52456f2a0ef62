"""What the probes are told, by the facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.server.shard.vitals import STALLED_S_MAX, Vitals, why_not_live, why_not_ready

WELL = Vitals(failed=False, idle_s=0.2, refused="ok")


@pytest.mark.parametrize(
    ("vitals", "why"),
    [
        (WELL, None),
        (Vitals(failed=True, idle_s=0.2, refused="ok"), "the store failed"),
        (Vitals(failed=False, idle_s=STALLED_S_MAX, refused="ok"), None),
        (Vitals(failed=False, idle_s=STALLED_S_MAX + 1, refused="ok"), "has not come for 31 s"),
        (Vitals(failed=False, idle_s=0.2, refused="low space: sends are refused"), None),
    ],
)
def test_a_broker_lives_unless_a_restart_is_the_remedy(vitals: Vitals, why: str | None) -> None:
    for found in (why_not_live(vitals), why_not_ready(vitals, stops=False)):
        assert found is None if why is None else why in (found or "")


def test_a_broker_whose_lease_is_over_lives_and_is_not_ready() -> None:
    """A restart mends nothing, and clients may find the store's owner elsewhere."""
    lapsed = replace(WELL, lapsed=True)
    assert why_not_live(lapsed) is None
    assert "the database of the store cannot be reached" in (why_not_ready(lapsed, stops=False) or "")


def test_a_node_that_cannot_reach_its_database_lives_and_is_not_ready() -> None:
    cut_off = replace(WELL, is_cut_off=True)
    assert why_not_live(cut_off) is None
    assert why_not_ready(cut_off, stops=False) == "the database of the cluster cannot be reached"


def test_a_broker_that_stops_lives_and_is_not_ready() -> None:
    assert why_not_live(WELL) is None
    assert why_not_ready(WELL, stops=True) == "the broker is stopping"
