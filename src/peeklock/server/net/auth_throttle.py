"""Pacing of addresses that show bad tokens or keys. Pure: time comes in.

A refused token costs about as much as a send, and a new connection several times that. A peer that guesses
keys, or a hundred processes with an old key, are let in at a pace that costs the others little. No address is
locked out: there may be good clients beside bad ones, and they are only slower to connect. Open connections
are not affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address

REFUSALS_MAX = 60
"""Refused tokens and keys from one address that are tolerated at once. Our choice: in a deployment with an
old key each client tries a few times."""

REFUSALS_FORGOTTEN_PER_S = 1.0
"""Our choice: a client that backs off, as the official ones do, is never paced."""

PACE_S = 0.1
"""Between two connections from a paced address. Our choice: with at most two dozen bad tokens in each, a few
per cent of a core."""

WAIT_S_MAX = 10.0
"""A connection that would wait longer is turned away. Our choice: shorter than clients' time-outs."""

ADDRESSES_MAX = 10_000
"""Addresses remembered. Our choice: some 2 MB; the one whose last refusal is oldest is forgotten first."""


@dataclass(slots=True)
class _Peer:
    refusals: float = 0.0
    at_ms: int = 0
    """The time of `refusals`, which decays from then on."""
    paced: bool = False
    """From more than REFUSALS_MAX until half as many."""
    next_ms: int = 0
    """When the next connection may be let in."""


class AuthThrottle:
    """Counts bad tokens and keys by address, and paces new connections."""

    def __init__(self) -> None:
        self._throttle: dict[str, _Peer] = {}

    def refused(self, address: str, now_ms: int) -> bool:
        """Count a refused token or key; return whether the peer may go on."""
        address = _site(address)
        peer = self._throttle.pop(address, None)
        if peer is None:
            if len(self._throttle) >= ADDRESSES_MAX:
                del self._throttle[next(iter(self._throttle))]
            peer = _Peer(at_ms=now_ms)
        self._throttle[address] = peer  # at the end: in the order of the last refusal
        _forget(peer, now_ms)
        peer.refusals = min(peer.refusals + 1, 2.0 * REFUSALS_MAX)
        peer.paced = peer.paced or peer.refusals > REFUSALS_MAX
        return not peer.paced

    def wait_s(self, address: str, now_ms: int) -> float | None:
        """Return how long a new connection must wait, s; None = it is turned away."""
        if not self._throttle:
            return 0.0  # nearly always
        peer = self._throttle.get(_site(address))
        if peer is None:
            return 0.0
        _forget(peer, now_ms)
        if not peer.paced:
            return 0.0
        at_ms = max(now_ms, peer.next_ms)
        if at_ms - now_ms > WAIT_S_MAX * 1000:
            return None
        peer.next_ms = at_ms + round(PACE_S * 1000)
        return (at_ms - now_ms) / 1000


def _site(address: str) -> str:
    """Return what one owner controls: an address, of IPv6 its network of 64 bits."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else parsed.packed[:8].hex()


def _forget(peer: _Peer, now_ms: int) -> None:
    """Apply the decay since the last time."""
    forgotten = max(0, now_ms - peer.at_ms) / 1000 * REFUSALS_FORGOTTEN_PER_S
    peer.refusals = max(0.0, peer.refusals - forgotten)
    peer.at_ms = now_ms
    peer.paced = peer.paced and peer.refusals > REFUSALS_MAX / 2
