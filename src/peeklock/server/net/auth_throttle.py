"""How much patience there is with the addresses that connections come from.

Owns: the count of refused tokens and keys by peer address, and how long a further connection has to
wait. Must not know: connections, tokens. Pure: time comes in.

A refused token costs about what a send costs, and a new connection several times that. Whoever guesses keys,
or has forgotten to change one in a hundred processes, is let in at a pace that costs the others little.
Nobody is locked out: behind one address there may be good clients beside bad ones, and they are only slower
to connect. Connections that are open are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address

REFUSALS_MAX = 60
"""Refused tokens and keys from one address that are borne at once. Our choice: a deployment with an old key
tries each of its clients some times."""

REFUSALS_FORGOTTEN_PER_S = 1.0
"""Our choice: a client that backs off, as the official ones do, is never paced."""

PACE_S = 0.1
"""Between two connections let in from an address that has used up its patience. Our choice: with two dozen
bad tokens at most in each, a few per cent of a core."""

WAIT_S_MAX = 10.0
"""Whoever would wait for longer is turned away. Our choice: shorter than clients' own time-outs."""

ADDRESSES_MAX = 10_000
"""Addresses remembered. Our choice: some 2 MB; the one that was longest quiet is forgotten first."""


@dataclass(slots=True)
class _Peer:
    refusals: float = 0.0
    at_ms: int = 0
    """When `refusals` was true; one is forgotten after the other from then on."""
    paced: bool = False
    """From the moment its patience is used up, until half of it is back."""
    next_ms: int = 0
    """When the next connection may be let in."""


class AuthThrottle:
    """The addresses that have shown bad tokens or keys lately."""

    def __init__(self) -> None:
        self._throttle: dict[str, _Peer] = {}

    def refused(self, address: str, now_ms: int) -> bool:
        """Count a refused token or key; tell whether there is patience left."""
        address = _site(address)
        peer = self._throttle.pop(address, None)
        if peer is None:
            if len(self._throttle) >= ADDRESSES_MAX:
                del self._throttle[next(iter(self._throttle))]
            peer = _Peer(at_ms=now_ms)
        self._throttle[address] = peer  # at the end: they stand in the order of their last refusal
        _forget(peer, now_ms)
        peer.refusals = min(peer.refusals + 1, 2.0 * REFUSALS_MAX)
        peer.paced = peer.paced or peer.refusals > REFUSALS_MAX
        return not peer.paced

    def wait_s(self, address: str, now_ms: int) -> float | None:
        """Give how long a new connection has to wait, s; None = it is turned away."""
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
    """Name whom an address belongs to: of IPv6 the network of 64 bits, in which anybody has all addresses."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else parsed.packed[:8].hex()


def _forget(peer: _Peer, now_ms: int) -> None:
    """Let the time pass that has passed."""
    forgotten = max(0, now_ms - peer.at_ms) / 1000 * REFUSALS_FORGOTTEN_PER_S
    peer.refusals = max(0.0, peer.refusals - forgotten)
    peer.at_ms = now_ms
    peer.paced = peer.paced and peer.refusals > REFUSALS_MAX / 2
