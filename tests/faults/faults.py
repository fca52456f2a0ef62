"""The faults of the matrix: what each does to a site, and how the site is whole again.

Owns: the faults by name. Must not know: what clients see of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from peeklock.demo.broker import program
from peeklock.store.postgres.leases import TTL_S
from tests.faults.site import Site
from tests.kill.ledger import Broken

NODES = "abc"
NAMESPACES = ("main", "load", "idle")
LOADED = "load"
DELAY_S = 0.2
"""Of each piece of a slow wire, each way."""
SLOW_S = 8.0
HOUR_S = 3600
PAUSE_S = 1.6 * TTL_S
"""Longer than a lease."""


@dataclass
class Place:
    """Where a fault happens."""

    site: Site
    owner: str
    """Of the loaded namespace."""
    entrance: str
    """The node that clients use, another one."""
    random: Random

    @property
    def other(self) -> str:
        """The third node."""
        return next(name for name in NODES if name not in (self.owner, self.entrance))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the owner."""
        pid = self.site.nodes[self.owner].pid
        assert pid is not None
        os.kill(pid, number)

    def until_taken(self) -> None:
        """Wait until another node owns the loaded namespace."""
        self.site.until_owned(LOADED, asked=self.entrance, besides=self.owner)

    def command(self, *words: str) -> None:
        """Run `peeklock cluster ...` at the entrance. Raises: Broken."""
        data = f"--data={self.site.nodes[self.entrance].data}"
        done = subprocess.run(
            [program(), "cluster", *words, data], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Broken(f"peeklock cluster {' '.join(words)}: {done.stdout}{done.stderr}")


def kill_owner(place: Place) -> None:
    """`kill -9` of the owner."""
    place.site.nodes[place.owner].kill()


def set_clock(place: Place) -> None:
    """The wall clock of the owner is an hour fast or slow for some seconds."""
    clock = place.site.clocks[place.owner]
    clock.set(place.random.choice((-HOUR_S, HOUR_S)))
    time.sleep(place.random.uniform(3.0, PAUSE_S))
    clock.set(0)


def stop_owner(place: Place) -> None:
    """`SIGTERM` to the owner, which ends with status 0."""
    place.site.stop(place.owner)


def freeze_owner(place: Place) -> None:
    """`SIGSTOP` of the owner until another node owns, then `SIGCONT`: it lets go."""
    before = place.site.gifts(place.owner)
    place.signal(signal.SIGSTOP)
    try:
        place.until_taken()
        time.sleep(place.random.uniform(0.0, 2.0))
    finally:
        place.signal(signal.SIGCONT)
    place.site.until_let_go(place.owner, before)


def cut_owner(place: Place) -> None:
    """The owner cannot reach the database, until another node owns: it lets go."""
    before = place.site.gifts(place.owner)
    wires = place.site.wires[place.owner]
    for wire in wires:
        wire.cut()
    try:
        place.until_taken()
        time.sleep(place.random.uniform(0.0, 2.0))
    finally:
        for wire in wires:
            wire.mend()
    place.site.until_let_go(place.owner, before)


def slow_store(place: Place) -> None:
    """Each piece between the owner and the database takes 200 ms, for 8 s; the owner stays."""
    wires = place.site.wires[place.owner]
    for wire in wires:
        wire.delay_s = DELAY_S
    time.sleep(SLOW_S)
    for wire in wires:
        wire.delay_s = 0.0


def kill_primary(place: Place) -> None:
    """`kill -9` of the primary; its synchronous standby is promoted."""
    place.site.lose_primary()


def kill_standby(place: Place) -> None:
    """`kill -9` of the synchronous standby; commits wait until a new one is there."""
    place.site.lose_standby()
    time.sleep(place.random.uniform(0.0, 2 * TTL_S))
    place.site.add_standby()


def freeze_standby(place: Place) -> None:
    """`SIGSTOP` of the standby for 8 s: commits wait for longer than a lease, and are in doubt."""
    standby = place.site.standby
    assert standby is not None
    standby.signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    standby.signal(signal.SIGCONT)


def end_backends(place: Place) -> None:
    """`pg_terminate_backend` of all connections of the nodes."""
    ours = "application_name LIKE 'peeklock %'"
    place.site.primary.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")


def move(place: Place) -> None:
    """`peeklock cluster move` to a node that does not own."""
    target = place.random.choice((place.entrance, place.other))
    place.command("move", LOADED, target)
    place.until_taken()
    place.command("move", LOADED)


def join(place: Place) -> None:
    """A node joins, and the owner gives it the loaded namespace."""
    site, new = place.site, place.other
    site.stop(new)
    place.command("move", "main", place.entrance)
    place.command("move", "idle", place.owner)
    site.until_owned("idle", asked=place.entrance, besides=place.entrance)
    time.sleep(1.0)
    site.start(new)
    place.until_taken()
    place.command("move", "main")
    place.command("move", "idle")


FAULTS: dict[str, Callable[[Place], None]] = {
    "kill-owner": kill_owner,
    "freeze-owner": freeze_owner,
    "cut-owner": cut_owner,
    "slow-store": slow_store,
    "kill-primary": kill_primary,
    "kill-standby": kill_standby,
    "freeze-standby": freeze_standby,
    "end-backends": end_backends,
    "clock": set_clock,
    "stop-owner": stop_owner,
    "move": move,
    "join": join,
}


def mend(site: Site) -> None:
    """Start what does not run: nodes, also those that have ended by themselves, and a standby."""
    if site.standby is None:
        site.add_standby()
    for name in NODES:
        if not site.runs(name):
            site.start(name)
