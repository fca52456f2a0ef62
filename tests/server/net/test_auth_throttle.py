"""Patience with addresses that show bad tokens."""

from __future__ import annotations

import pytest

from peeklock.server.net import auth_throttle as throttling
from peeklock.server.net.auth_throttle import PACE_S, REFUSALS_MAX, WAIT_S_MAX, AuthThrottle

NOW = 1_700_000_000_000


def exhausted() -> AuthThrottle:
    known = AuthThrottle()
    for _ in range(REFUSALS_MAX):
        assert known.refused("10.0.0.1", NOW)
    assert not known.refused("10.0.0.1", NOW)
    return known


def test_an_address_with_few_refusals_waits_for_nothing() -> None:
    """Req: R-04."""
    known = AuthThrottle()
    for _ in range(REFUSALS_MAX):
        assert known.refused("10.0.0.1", NOW)
        assert known.wait_s("10.0.0.1", NOW) == 0


def test_one_that_has_used_up_its_patience_is_let_in_at_a_pace() -> None:
    """Req: R-04, R-05. The others are not."""
    known = exhausted()
    pace_ms = round(PACE_S * 1000)
    assert [known.wait_s("10.0.0.1", NOW) for _ in range(4)] == pytest.approx(
        [0, PACE_S, 2 * PACE_S, 3 * PACE_S]
    )
    assert known.wait_s("10.0.0.1", NOW + pace_ms) == pytest.approx(3 * PACE_S)
    assert known.wait_s("10.0.0.2", NOW) == 0


def test_who_would_wait_too_long_is_turned_away() -> None:
    """Req: R-05."""
    known = exhausted()
    waits = [known.wait_s("10.0.0.1", NOW) for _ in range(1000)]
    let_in = [wait for wait in waits if wait is not None]
    assert len(let_in) == WAIT_S_MAX / PACE_S + 1
    assert waits[len(let_in) :] == [None] * (1000 - len(let_in))


def test_patience_comes_back() -> None:
    """Req: R-04. A client that backs off is not paced; half of the patience has to be back first."""
    known = exhausted()
    assert known.wait_s("10.0.0.1", NOW) == 0
    assert known.wait_s("10.0.0.1", NOW) == PACE_S
    back = NOW + (REFUSALS_MAX // 2 + 1) * 1000
    assert not known.refused("10.0.0.1", back - 2000)  # still paced: a further refusal is one too many
    assert [known.wait_s("10.0.0.1", back + 2000) for _ in range(3)] == [0, 0, 0]
    assert known.refused("10.0.0.1", back + 2000)


def test_a_clock_that_goes_back_forgets_nothing() -> None:
    known = exhausted()
    assert not known.refused("10.0.0.1", NOW - 3_600_000)


def test_addresses_of_one_site_count_together() -> None:
    """Req: R-05. Whoever has an IPv6 address has 2^64 of them."""
    known = AuthThrottle()
    for number in range(REFUSALS_MAX):
        assert known.refused(f"2001:db8::{number:x}", NOW)
    assert not known.refused("2001:db8::ffff:0:1", NOW)
    assert known.wait_s("2001:db8::abcd", NOW) == 0
    assert known.wait_s("2001:db8:0:0:1::1", NOW) == PACE_S
    assert known.wait_s("2001:db8:0:1::1", NOW) == 0
    assert not exhausted().refused("::ffff:10.0.0.1", NOW)
    for odd in ("fe80::1%eth0", "not:an:address", ""):
        assert known.refused(odd, NOW)


def test_what_is_remembered_is_bounded() -> None:
    """Req: R-05. The address that was longest quiet is forgotten first."""
    known = exhausted()
    for number in range(throttling.ADDRESSES_MAX - 1):
        known.refused(f"2001:db8:{number:x}::1", NOW)
    known.refused("10.0.0.1", NOW)
    known.refused("10.0.0.3", NOW)
    assert known.wait_s("10.0.0.1", NOW) == 0
    assert known.wait_s("10.0.0.1", NOW) == PACE_S
    for number in range(throttling.ADDRESSES_MAX):
        known.refused(f"2001:db9:{number:x}::1", NOW)
    assert [known.wait_s("10.0.0.1", NOW) for _ in range(2)] == [0, 0]
