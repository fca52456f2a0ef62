"""Hostile peers: they flood, hold deliveries that they never finish, and leave in every possible way.

Owns: what hostile peers send, all of it made by hand, and when they come. They draw from a random source
apart, so that the honest clients of a seed act as they would without them. Must not know: what the broker
does with it, beyond what `bounds` learns here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from peeklock.amqp.frames import EMPTY_FRAME, frame
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.performatives import ACCEPTED, encode_close, encode_detach, encode_disposition
from peeklock.amqp.types import Role, UInt
from peeklock.auth.sas import generate
from peeklock.testing.wire import CLIENT, WireState
from tests.amqp.pair import attach, begin, end, sasl_and_open, transfer
from tests.simulation.actors.actors import RETRY_MS, Shared
from tests.simulation.actors.peer import TOKEN_MS
from tests.simulation.oracle.bounds import Guest
from tests.simulation.world.accounts import KEY, KEY_NAME
from tests.simulation.world.wire import Wire

HOSTILE_EVERY, HOSTILE_FIRST, HOSTILE_SECOND = 7, 1, 3
"""Two seeds of seven; some have topics or readers by claims, others not."""

SALT = 0x5E_ED_F1_00_D5

FLOODS = 6
FLOOD_FRAMES = (100, 250, 500, 1_000)
"""Visits that flood, and about how many frames each sends in one write: a stranger's longest takes some 200
turns."""

HOLDERS = 4
"""Peers that come at about the same time and hold unfinished deliveries: two fill the budget of strangers."""

TURNS_BETWEEN = 20
"""Pairs of begin and end that fill more than one slice: behind them a claim is known to count."""

BOUNDARIES = (0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1)

LINK_BYTES_MAX = 30_000
"""Bytes of an unfinished delivery to $cbs, which takes 32 KiB: a longer one is dropped at once."""

PROBES_FROM = 50
"""Channel of the first probe: a begin whose answer shows that all before it is held."""


def has_hostile(seed: int) -> bool:
    """Return whether hostile peers come."""
    return seed % HOSTILE_EVERY in (HOSTILE_FIRST, HOSTILE_SECOND)


class Hostile:
    """All hostile peers of a seed."""

    def __init__(self, shared: Shared, queues: list[str]) -> None:
        self.shared = shared
        self.queues = queues
        self.random = Random(shared.world.seed ^ SALT)
        self.stopped = False
        self.visits: list[Visit] = []

    def start(self, faults_ms: int) -> None:
        """Plan all visits, spread over the phase with faults."""
        random = self.random
        for _ in range(FLOODS):
            self._plan(random.randrange(faults_ms), random.choice(("pairs", "pairs", "mixed", "mixed")))
        for _ in range(2):
            at_ms = random.randrange(faults_ms)
            for _ in range(HOLDERS):
                self._plan(at_ms + random.randrange(500), "hold")

    def _plan(self, delay_ms: int, kind: str) -> None:
        visit = Visit(self, f"{kind}-{len(self.visits)}", kind)
        self.visits.append(visit)
        self.shared.world.after(delay_ms, visit.begin)

    def stop(self) -> None:
        """End all visits."""
        self.stopped = True
        for visit in self.visits:
            visit.leave("end")


class Visit:
    """One connection of a hostile peer."""

    def __init__(self, hostile: Hostile, name: str, kind: str) -> None:
        self._world = hostile.shared.world
        self._hostile = hostile
        self._random = random = hostile.random
        self._claims = random.choice((*[None] * 6, "PLAIN", "token"))
        self._guest = Guest(name, known=self._claims is not None, paired=kind == "pairs")
        self._wire: Wire | None = None
        self._deliveries = 0
        self._leaving = False
        scripts: dict[str, Callable[[], Iterator[bytes]]] = {
            "pairs": self._pairs,
            "mixed": self._mixed,
            "hold": self._hold,
        }
        self._script = scripts[kind]()

    def begin(self) -> None:
        """Connect, and run the script."""
        if self._hostile.stopped:
            return
        wire = self._hostile.shared.tenant.connect(self._guest, self._random)
        if wire is None:
            self._world.after(self._random.randint(50, RETRY_MS), self.begin)
            return
        self._world.note(f"{self._guest.name} connects")
        self._wire = wire
        wire.on_data[CLIENT] = self._received
        wire.on_end[CLIENT] = lambda: self.leave("end")
        wire.write(CLIENT, self._hello())
        self._world.after(self._random.randint(1, 50), self._go_on)

    def _received(self, data: bytes) -> None:
        if RESOURCE_LIMIT_EXCEEDED.encode() in data:
            self._hostile.shared.node.bounds.counts["refused to hold"] += 1

    def _go_on(self) -> None:
        if self._wire is None:
            return
        part = next(self._script, None)
        if part is None:
            if not self._leaving:
                self._leaving = True
                self._world.after(self._random.choice((1, 200, 200, 3_000)), self._go_on)
            else:
                self.leave(self._random.choice(("close", "end", "cut", "drop", "stay", "stay")))
            return
        self._wire.write(CLIENT, part)
        self._world.after(self._random.randint(1, 50), self._go_on)

    def leave(self, how: str) -> None:
        """Leave in one of the ways; `stay`: silently, until the broker ends the connection or all leave."""
        wire = self._wire
        if wire is None or how == "stay":
            return
        self._wire = None
        self._world.note(f"{self._guest.name} leaves: {how}")
        if wire.memory.state is not WireState.OPEN:
            wire.close(CLIENT)
        elif how == "cut":
            wire.cut()
        elif how == "drop":
            wire.memory.drop()
        else:
            if how == "close":
                wire.write(CLIENT, frame(0, encode_close(None)))
            wire.close(CLIENT)

    # What is sent

    def _hello(self) -> bytes:
        """Connect, begin a session with a pair of links to $cbs, and show the claim if there is one."""
        plain = f"\0{KEY_NAME}\0{KEY}".encode()
        hello = sasl_and_open("PLAIN", plain) if self._claims == "PLAIN" else sasl_and_open()
        hello += begin() + _to_cbs(0, Role.RECEIVER) + _to_cbs(1, Role.SENDER)
        if self._claims == "token":
            token = generate("sb://localhost/", KEY_NAME, KEY, self._world.now_ms + TOKEN_MS)
            hello += self._transfer(1, _put_token(token), more=False)
            hello += _pair(1) * TURNS_BETWEEN
        return hello

    def _pairs(self) -> Iterator[bytes]:
        """Begin and end sessions, between frames that get no answer."""
        random = self._random
        yield self._flood(lambda: random.choice((_pair(random.randint(1, 40)), EMPTY_FRAME, _settle_all())))
        if random.random() < 0.3:
            yield self._half()

    def _mixed(self) -> Iterator[bytes]:
        """Send every kind of frame that costs more than its size suggests."""
        random = self._random
        kinds: tuple[Callable[[], bytes], ...] = (
            *[self._credit] * 4,
            *[lambda: _pair(random.randint(1, 40))] * 2,
            *[self._refused] * 2,
            *[self._once_more] * 2,
            _settle_all,
            lambda: EMPTY_FRAME,
            lambda: self._transfer(1, _put_token("no token"), more=False),
            lambda: self._transfer(1, random.randbytes(40), more=False),
            self._aborted,
        )
        yield self._flood(lambda: random.choice(kinds)())
        yield _settle_all(2**32 - 1)
        if random.random() < 0.3:
            yield self._half()

    def _hold(self) -> Iterator[bytes]:
        """Begin deliveries and finish none; after each part a probe asks whether it is held."""
        random, guest = self._random, self._guest
        links = range(1, 13 if guest.known else 5)
        yield b"".join(_to_cbs(link, Role.SENDER) for link in links[1:])
        if guest.known:
            yield attach(20, Role.SENDER, address=random.choice(self._hostile.queues))
            yield self._transfer(20, bytes(random.randint(1, 60_000)), more=True)
        probe = PROBES_FROM
        for _ in range(random.choice((1, 1, 2))):
            held = dict.fromkeys(links, 0)
            wanted = random.choice((20_000, 60_000, 100_000) if not guest.known else (100_000, 340_000))
            while sum(held.values()) < wanted:
                link = random.choice([link for link in links if held[link] < LINK_BYTES_MAX])
                size = random.randint(1, min(16_000, LINK_BYTES_MAX - held[link]))
                held[link] += size
                guest.probes[probe] = sum(held.values())
                yield self._transfer(link, bytes(size), more=True, first=held[link] == size) + begin(probe)
                probe += 1
            if random.random() < 0.5:
                break
            guest.release()
            yield b"".join(_detach(link) for link in links)
            yield b"".join(_to_cbs(link, Role.SENDER) for link in links)

    def _flood(self, make: Callable[[], bytes]) -> bytes:
        """Make one long write."""
        bounds = self._hostile.shared.node.bounds
        bounds.counts["floods"] += 1
        return b"".join(make() for _ in range(self._random.choice(FLOOD_FRAMES)))

    def _half(self) -> bytes:
        whole = _pair(1)
        return whole[: self._random.randrange(1, len(whole))]

    def _credit(self) -> bytes:
        return _flow(self._random.choice(BOUNDARIES), self._random.choice(BOUNDARIES))

    def _refused(self) -> bytes:
        """Attach a link that is refused, and answer that."""
        return _no_link(self._random.choice((Role.SENDER, Role.RECEIVER))) + _detach(5)

    def _once_more(self) -> bytes:
        """Detach a link, and attach it on the same handle."""
        handle, role = self._random.choice(((0, Role.RECEIVER), (1, Role.SENDER)))
        return _detach(handle) + _to_cbs(handle, role)

    def _aborted(self) -> bytes:
        part = self._transfer(1, bytes(self._random.randint(1, 2_000)), more=True)
        return part + transfer(1, None, b"", tag=None, message_format=None, aborted=True)

    def _transfer(self, handle: int, payload: bytes, *, more: bool, first: bool = True) -> bytes:
        """Make a transfer; one that is not the first of its delivery repeats neither id nor tag."""
        if not first:
            return transfer(handle, None, payload, tag=None, message_format=None, more=more)
        self._deliveries += 1
        return transfer(handle, self._deliveries - 1, payload, more=more)


@cache
def _pair(channel: int) -> bytes:
    return begin(channel) + end(channel)


@cache
def _to_cbs(handle: int, role: Role) -> bytes:
    return attach(handle, role, name=f"{role.name}-{handle}", address="$cbs")


@cache
def _no_link(role: Role) -> bytes:
    return attach(5, role, name="refused", address="nowhere")


@cache
def _detach(handle: int) -> bytes:
    return frame(0, encode_detach(handle, True, None))


@cache
def _settle_all(last: int = 2**31 - 1) -> bytes:
    """Settle as much as one disposition may; 2^32-1 ends the session."""
    return frame(0, encode_disposition(Role.RECEIVER, 0, last, True, ACCEPTED))


@cache
def _flow(delivery_count: int, credit: int) -> bytes:
    fields = [UInt(0), UInt(65536), UInt(0), UInt(65536), UInt(0), UInt(delivery_count), UInt(credit)]
    return frame(0, composite(composites.FLOW, [*fields, None, False, True]))


@cache
def _put_token(token: str) -> bytes:
    return encode_message(
        properties=Properties(message_id="token", reply_to="RECEIVER-0"),
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://localhost/",
        },
        value=token,
    )
