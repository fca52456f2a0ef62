"""Links, sessions and connections that are over are freed at once, by reference counting alone."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from peeklock.amqp.performatives import Coordinator
from peeklock.amqp.types import Role
from peeklock.broker.vocabulary.commands import DeleteEntity
from peeklock.testing.inprocess import InProcessBroker
from tests.amqp.pair import transfer
from tests.gateway.harness import LiveHarness, message_bytes

LINKS = (
    "Link",
    "Partial",
    "SenderEndpoint",
    "ReceiverEndpoint",
    "RequestLink",
    "ReplyLink",
    "CoordinatorLink",
)
SESSIONS = ("Session", "Incoming", "Outgoing", "Unsettled")
CONNECTIONS = (
    "Gateway",
    "Connection",
    "Handshake",
    "Sessions",
    "Output",
    "LinkTable",
    "Context",
    "TokenNode",
)


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is there already is no matter
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def census(names: tuple[str, ...]) -> Counter[str]:
    """Count the objects of the broker's end by type; some have no weak references."""
    kinds = (type(thing) for thing in gc.get_objects())
    ours = (kind.__name__ for kind in kinds if kind.__module__.startswith("peeklock."))
    return Counter(name for name in ours if name in names)


def opened() -> tuple[InProcessBroker, LiveHarness]:
    broker = InProcessBroker()
    broker.create_queue("orders")
    return broker, LiveHarness(broker)


def attach_all(rig: LiveHarness, channel: int) -> list[int]:
    """Attach a link of each kind; one has a lock, one is in the midst of a delivery."""
    sender = rig.sender(channel=channel)
    rig.transfer(sender, message_bytes(), channel=channel)
    handles = [rig.attach(Role.RECEIVER, "orders", rcv_settle_mode=1, channel=channel)]
    rig.client.flow(channel, handles[0], 5)
    rig.pump()
    handles += [rig.attach(Role.SENDER, Coordinator(), channel=channel)]
    for node in ("$cbs", "orders/$management"):
        handles += [
            rig.attach(role, node, near=node, channel=channel) for role in (Role.SENDER, Role.RECEIVER)
        ]
    handles.append(rig.sender(channel=channel))
    rig._wire.write(transfer(handles[-1], 90, bytes(1000), channel=channel, tag=b"x", more=True))
    return [sender, *handles]


def detach_all(rig: LiveHarness, channel: int, handles: list[int]) -> None:
    for handle in handles:
        rig.client.detach(channel, handle)
    rig.pump()


def test_a_link_is_freed_when_it_is_detached() -> None:
    """Req: R-05."""
    _, rig = opened()
    # The client's half is of the same engine.
    before = census(LINKS)
    handles = attach_all(rig, rig.channel)
    assert (census(LINKS) - before).keys() == set(LINKS)
    detach_all(rig, rig.channel, handles)
    assert census(LINKS) - before == Counter()


def test_links_are_freed_when_their_entity_is_deleted() -> None:
    """Req: R-05."""
    broker, rig = opened()
    handles = [rig.sender(), rig.listen(credit=5)]
    broker.ask(lambda reply_to: DeleteEntity("orders", reply_to))
    rig.pump()
    detach_all(rig, rig.channel, handles)
    assert census(LINKS) == Counter()


@pytest.mark.parametrize("orderly", [True, False])
def test_a_session_and_its_links_are_freed_when_it_is_ended(orderly: bool) -> None:
    """Req: R-05. By the peer, or by us because it broke the protocol."""
    _, rig = opened()
    before = census(LINKS + SESSIONS)
    channel = rig.client.begin()
    attach_all(rig, channel)
    assert (census(LINKS + SESSIONS) - before).keys() == {*LINKS, *SESSIONS}
    if not orderly:
        rig._wire.write(transfer(900, 1, b"", channel=channel))
        rig.pump()
    rig.client.end(channel)
    rig.pump()
    assert census(LINKS + SESSIONS) - before == Counter()


def _close(rig: LiveHarness) -> None:
    rig.client.close()
    rig.pump()
    rig.cut()


def _break_protocol(rig: LiveHarness) -> None:
    rig._wire.write(bytes(8))
    rig.cut()


def _shut_down(rig: LiveHarness) -> None:
    rig._wire.gateway.shutdown(0)
    rig.cut()


ENDS: dict[str, Callable[[LiveHarness], object]] = {
    "close": _close,
    "end of stream": LiveHarness.cut,
    "protocol error": _break_protocol,
    "shutdown": _shut_down,
}


@pytest.mark.parametrize("end", [*ENDS.values()], ids=[*ENDS])
def test_a_connection_is_freed_at_each_end(end: Callable[[LiveHarness], object]) -> None:
    """Req: R-05. The core keeps nothing of it but its locks."""
    kinds = LINKS + SESSIONS + CONNECTIONS
    broker, first = opened()
    before = census(kinds)
    rig = LiveHarness(broker)
    attach_all(rig, rig.channel)
    assert (census(kinds) - before).keys() == set(kinds)
    gateway = weakref.ref(rig.gateway)
    end(rig)
    rig.client.eof(0)  # of the same engine
    del rig
    assert gateway() is None
    assert census(kinds) - before == Counter()
    assert first.gateway is not None
