"""The real broker process: killed, stopped, started twice, without disk space."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peeklock.demo.broker import BrokerFailed, BrokerProcess
from tests.kill.clients import Client, Receiver, Sender
from tests.kill.ledger import Broken, Ledger
from tests.kill.loop import QUEUE, MessageLoop, broker_on

pytestmark = pytest.mark.kill

LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"


def run(folder: Path, story: Callable[[BrokerProcess], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a broker that runs, and is ended in any case."""
    with broker_on(folder) as broker:
        asyncio.run(story(broker))


async def until(true: Callable[[], bool], *clients: Client, what: str) -> None:
    """Wait, at most 20 s, until a condition holds; raise what went wrong for a client meanwhile."""
    deadline = asyncio.get_running_loop().time() + 20
    while not true():
        for client in clients:
            if client.failure is not None:
                raise client.failure
        assert asyncio.get_running_loop().time() < deadline, f"not within 20 s: {what}"
        await asyncio.sleep(0.01)


def ended(broker: BrokerProcess) -> bool:
    """Whether it has ended by itself."""
    try:
        broker.check()
    except BrokerFailed:
        return True
    return False


@pytest.mark.parametrize(
    ("durability", "rounds", "grace"), [("fsync", 6, "5"), ("os", 4, "0"), ("os", 3, "lapse")]
)
def test_nothing_acknowledged_is_lost_or_returns_however_often_it_is_killed(
    tmp_path: Path, durability: str, rounds: int, grace: str
) -> None:
    """Req: R-01, R-02, L-05, T-01, T-07, S-01, C26"""
    options = ("--durability", durability, "--lock-grace", grace)
    loop = MessageLoop(tmp_path, seed=7, options=options)
    figures = asyncio.run(loop.run(rounds))
    assert figures["accepted"] > 200
    assert figures["completed"] > 100


def test_sigterm_tells_every_client_and_ends_with_status_0(tmp_path: Path) -> None:
    """Clients get amqp:connection:forced; accepted messages are there after the next start. Req: R-01"""

    async def story(broker: BrokerProcess) -> None:
        ledger = Ledger()
        sender = Sender("sender", ledger, Random(1), QUEUE)
        receiver = Receiver("receiver", ledger, Random(2), QUEUE, careless=False)
        await sender.connect(broker.amqp_port)
        await until(lambda: sender.outcomes > 50, sender, what="50 outcomes")
        await receiver.connect(broker.amqp_port)
        await until(lambda: receiver.deliveries > 20, receiver, what="20 deliveries")
        assert await asyncio.to_thread(broker.stop) == 0, broker.log.read_text()
        await asyncio.wait_for(sender.over.wait(), 5)
        await asyncio.wait_for(receiver.over.wait(), 5)
        assert sender.condition == "amqp:connection:forced"
        assert receiver.condition == "amqp:connection:forced"
        broker.start()
        again = Receiver("again", ledger, Random(3), QUEUE, careless=False)
        await again.connect(broker.amqp_port)
        await until(ledger.is_drained, again, what="all stored messages are completed")
        ledger.finish()

    run(tmp_path, story)


def test_sigterm_while_clients_connect_ends_with_status_0_and_tells_those_that_are_open(
    tmp_path: Path,
) -> None:
    """A loop's polite end came before all were open, on a slow machine. Req: R-01"""
    loop = MessageLoop(tmp_path, seed=1)

    async def connect() -> list[Client]:
        senders, receivers = await loop.connect(senders=8, receivers=8)
        return [*senders, *receivers]

    async def story() -> None:
        await loop.stop(await connect())
        loop.broker.start()
        clients = await connect()
        assert await asyncio.to_thread(loop.broker.stop) == 0, loop.broker.log.read_text()
        await loop.over(clients)

    with loop.broker:
        asyncio.run(story())


def test_a_second_broker_on_the_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    """Req: R-02"""

    with broker_on(tmp_path) as broker:
        with pytest.raises(BrokerFailed, match=str(broker.pid)):
            broker_on(tmp_path).start()
        broker.check()
        broker.kill()
        broker.start()  # the lock of a killed process is no obstacle


def test_below_min_free_sends_are_refused_and_completions_go_on(tmp_path: Path) -> None:
    """Req: R-06"""

    async def story(broker: BrokerProcess) -> None:
        ledger = Ledger()
        sender = Sender("sender", ledger, Random(1), QUEUE, sends_max=50)
        await sender.connect(broker.amqp_port)
        await until(lambda: sender.outcomes == 50, sender, what="50 outcomes")
        stored = len(ledger.fates)
        assert await asyncio.to_thread(broker.stop) == 0

        with broker_on(tmp_path, f"--min-free={1 << 60}") as starved:
            refused: set[str | None] = set()
            for number in range(100):
                # Free space is checked from time to time: the first sends may still pass.
                late = Sender(f"late-{number}", ledger, Random(number), QUEUE, sends_max=1)
                await late.connect(starved.amqp_port)

                def told(late: Sender = late) -> bool:
                    return late.outcomes == 1

                await until(told, late, what="an outcome")
                late.close()
                refused = {fate.rejected for fate in ledger.fates.values()}
                if len(refused) > 1:
                    break
                await asyncio.sleep(0.1)
            assert refused == {None, LIMIT_EXCEEDED}
            receiver = Receiver("receiver", ledger, Random(2), QUEUE, careless=False)
            await receiver.connect(starved.amqp_port)
            await until(
                lambda: all(f.completed for f in ledger.fates.values() if f.accepted),
                receiver,
                what="all accepted messages are completed",
            )
            assert receiver.deliveries >= stored
            ledger.finish()

    run(tmp_path, story)


def test_a_failing_write_ends_the_process_with_a_clear_log_line_and_loses_nothing(tmp_path: Path) -> None:
    """No file may grow beyond 600 kB: the write-ahead log fails as on a full disk. Req: R-06, R-02"""

    async def story(broker: BrokerProcess) -> None:
        ledger = Ledger()
        assert broker.pid is not None
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (600_000, 600_000))
        senders = [Sender(f"sender-{n}", ledger, Random(n), QUEUE) for n in range(2)]
        for sender in senders:
            await sender.connect(broker.amqp_port)
        for sender in senders:
            await asyncio.wait_for(sender.over.wait(), 30)
        await until(lambda: ended(broker), what="the broker ends by itself")
        with pytest.raises(BrokerFailed, match="with status 1;"):
            broker.check()
        log = broker.log.read_text()
        last = [line for line in log.splitlines() if '"error"' in line or "critical" in line]
        assert last, log[-3000:]
        assert any("fail" in line and "batch" in line for line in last), last
        accepted = sum(fate.accepted for fate in ledger.fates.values())
        assert accepted > 10

        with broker_on(tmp_path) as healed:
            receiver = Receiver("receiver", ledger, Random(9), QUEUE, careless=False)
            await receiver.connect(healed.amqp_port)
            await until(
                lambda: all(f.completed for f in ledger.fates.values() if f.accepted),
                receiver,
                what="all accepted messages are completed",
            )
            assert await asyncio.to_thread(healed.stop) == 0
            ledger.finish()

    run(tmp_path, story)


class TestLedger:
    """The judge itself."""

    def test_a_lost_message_is_found(self) -> None:
        ledger = Ledger()
        ledger.answered(ledger.sending(), None)
        with pytest.raises(Broken, match="lost"):
            ledger.finish()

    def test_a_message_that_comes_back_is_found(self) -> None:
        ledger = Ledger()
        uid = ledger.sending()
        ledger.delivered(uid, 1)
        ledger.completing(uid)
        ledger.completed(uid)
        with pytest.raises(Broken, match="came back"):
            ledger.delivered(uid, 1)

    def test_a_number_used_twice_is_found(self) -> None:
        ledger = Ledger()
        ledger.delivered(ledger.sending(), 1)
        with pytest.raises(Broken, match="number 1"):
            ledger.delivered(ledger.sending(), 1)

    def test_half_a_batch_is_found(self) -> None:
        ledger = Ledger()
        first = ledger.sending(group=1)
        ledger.sending(group=1)
        ledger.delivered(first, 1)
        with pytest.raises(Broken, match="in part"):
            ledger.finish()
