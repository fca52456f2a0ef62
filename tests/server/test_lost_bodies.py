"""Bodies that are damaged on the disk: each costs its own message the body, and nobody else anything."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peeklock.amqp.messaging import Sections
from peeklock.broker.content import overlay as properties
from peeklock.broker.content.overlay import dead_letter_reason
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import enqueue
from peeklock.broker.vocabulary.commands import (
    Address,
    ClaimMessages,
    Command,
    CreateEntity,
    LinkId,
    LockToken,
    LookUp,
    OpenReceiver,
    Peek,
    ReceiveMode,
    ReplyTo,
    Schedule,
    Send,
    SequenceNumber,
    SessionRequest,
    SetCredit,
    SetSessionState,
    SubQueue,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import Deliver, MessagesFound
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, LOST_BODY, Message, MessageState, Routing
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.cli import main
from peeklock.engine import driver
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.engine.reclaim import ReclaimFound
from peeklock.server.loop.turns import Turns
from peeklock.server.repair import check
from peeklock.server.shard.shard import Shard
from peeklock.store.base import Batch, StoreDamaged, StoreFailed
from peeklock.store.check import DAMAGED, SOUND
from peeklock.store.encoding import event_rows
from peeklock.store.sqlite.store import SqliteStore
from tests.server.shard.test_shard import Connection
from tests.store.damage import flip

NOW_MS = 1_700_000_000_000
LINK = LinkId(1, 1)
DEAD = SubQueue.DEAD_LETTER


class Rig:
    """A shard over a store on the disk, whose bodies can be damaged while it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: list[BaseException] = []
        self.connect: Callable[..., sqlite3.Connection] = sqlite3.connect
        self.shard: Shard
        self.namespace: Namespace

    async def start(self) -> None:
        self.namespace = Namespace(
            limits=PREMIUM,
            tokens=lambda: LockToken(os.urandom(16)),
            digest_key=b"test",
            captures_body=lambda name: False,
        )
        self.engine = Engine(self.namespace, BodyCache())
        self.store = SqliteStore(self.folder, connect=self.connect)
        await self.store.open()
        await self.engine.recover(self.store, NOW_MS)
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.shard = Shard(
            self.engine,
            self.namespace,
            self.store,
            lambda: NOW_MS,
            min_free_bytes=lambda: 0,
            on_definitions=lambda facts, now_ms: None,
            on_failure=self.fail,
            turns=Turns(loop.call_soon, loop.call_later, on_defect=self.failures.append),
        )
        self.connection = Connection()
        self.shard.add(1, self.connection)

    async def restart(self, *damaged: bytes) -> None:
        """Stop, flip a bit in each of these bodies, and start."""
        await self.shard.stop()
        for body in damaged:
            damage(self.folder, body)
        await self.start()

    async def ask(self, make: Callable[[Any], Command]) -> Any:
        answer = self.shard.submit(make)
        await asyncio.wait([answer], timeout=10)
        assert answer.done(), self.failures
        return answer.result()

    async def create(self, *descriptions: Any) -> None:
        for description in descriptions:
            await self.ask(partial(CreateEntity, description))

    async def send(self, queue_id: int, *payloads: bytes, session_id: str | None = None) -> None:
        for payload in payloads:
            routing = Routing(session_id=session_id)
            self.shard.offer(
                (Send(queue_id, Message(len(payload), routing=routing), Sections(payload), None),)
            )
        await self.settle()

    async def settle(self) -> None:
        """Let all happen that was begun."""
        for _ in range(20):
            if self.failures:
                return
            self.answer = self.shard.submit(lambda to: LookUp(Address("orders"), to))
            await asyncio.wait([self.answer], timeout=10)
            await asyncio.sleep(0.005)

    def fail(self, failure: BaseException) -> None:
        """Stop waiting for what a broker that has failed does not answer."""
        self.failures.append(failure)
        self.answer.cancel()

    async def read(self, *rows: int) -> None:
        """Read body rows as for a delivery."""
        self.connection.wanted = set(rows)
        self.shard._driver.want(1, self.connection.wanted)
        self.shard._driving.run()
        await self.settle()

    async def receive_and_delete(self, name: str, session: SessionRequest | None = None) -> None:
        """Let a receiver of this test have all that there is."""
        mode = ReceiveMode.RECEIVE_AND_DELETE
        self.shard.offer((OpenReceiver(LINK, Address(name), mode, session),))
        self.shard.offer((SetCredit(LINK, 100, 1 << 30),))
        await self.settle()

    def delivered(self) -> list[int]:
        """Return the numbers of what was delivered, each with its body."""
        found = [each.message for each in self.connection.effects if isinstance(each, Deliver)]
        assert all(self.shard.body(message) not in (None, LOST_BODY) for message in found)
        return [message.sequence_number for message in found]

    async def peek(self, name: str, sub_queue: SubQueue | None = None) -> list[Message]:
        address = Address(name) if sub_queue is None else Address(name, sub_queue)
        found: MessagesFound = await self.ask(lambda to: Peek(address, SequenceNumber(0), 100, 1 << 30, to))
        return [view.message for view in found.messages]


def damage(folder: Path, body: bytes) -> None:
    path = folder / "peeklock.db"
    data = bytearray(path.read_bytes())
    at = data.index(body)
    data[at + len(body) // 2] ^= 4
    path.write_bytes(data)


def run(folder: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        rig = Rig(folder)
        await rig.start()
        await rig.create(QueueDescription("orders"))
        await test(rig)
        if not rig.failures:
            await rig.shard.stop()

    asyncio.run(all_of_it())


def body(number: int) -> bytes:
    return b"body %d of this test " % number * 5


ORDERS = 4


def reason(message: Message) -> str | None:
    return None if message.overlay is None else dead_letter_reason(message.overlay)


def test_a_message_with_a_damaged_body_is_dead_lettered_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its number and times are kept, its neighbours in the row are whole, and a second start changes nothing.
    Req: R-03."""

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, body(1), body(2), body(3))
        before = {message.sequence_number: message for message in await rig.peek("orders")}
        await rig.restart(body(2))
        row = before[SequenceNumber(2)].body_row
        with caplog.at_level(logging.ERROR):
            await rig.read(row)
        assert [message.sequence_number for message in await rig.peek("orders")] == [1, 3]
        for _ in range(2):
            [dead] = await rig.peek("orders", DEAD)
            assert reason(dead) == "StoreDamaged"
            assert dead.sequence_number == 2
            assert dead.enqueued_at_ms == before[SequenceNumber(2)].enqueued_at_ms
            assert rig.shard.body(dead) == EMPTY_PAYLOAD
            await rig.restart()
            await rig.read(dead.body_row)
            assert (await rig.shard.health())["lost_bodies"] == 0
        assert not rig.failures

    run(tmp_path, test)
    assert "its message was dead-lettered without it" in caplog.text
    report = check(tmp_path)
    assert (report.damages, report.handled, report.exit_status) == ([], 1, SOUND)  # kept for rescue


def test_a_message_that_would_be_deleted_as_it_is_received_is_dead_lettered_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not deleted before its body was read; its neighbours are delivered. Req: L-01, R-03."""

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 16)))
        await rig.restart(body(10), body(13))
        with caplog.at_level(logging.ERROR):
            await rig.receive_and_delete("orders")
        assert rig.delivered() == [2, 3, 5, 6]
        assert await rig.peek("orders") == []
        for _ in range(2):
            found = [(each.sequence_number, reason(each)) for each in await rig.peek("orders", DEAD)]
            assert found == [(1, "StoreDamaged"), (4, "StoreDamaged")]
            assert (await rig.shard.health())["lost_bodies"] in (2, 0)
            await rig.restart()

    run(tmp_path, test)
    assert caplog.text.count("its message was dead-lettered without it") == 2


def test_the_copies_of_a_body_that_one_would_delete_are_dead_lettered(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        names = ("a", "b", "c")
        await rig.create(TopicDescription("events"), *(SubscriptionDescription("events", n) for n in names))
        await rig.send(8, body(1), body(2))
        await rig.restart(body(1))
        await rig.receive_and_delete("events/subscriptions/b")
        assert rig.delivered() == [2]
        for name in names:
            path = f"events/subscriptions/{name}"
            assert [reason(each) for each in await rig.peek(path, DEAD)] == ["StoreDamaged"]
            assert len(await rig.peek(path)) == (name != "b")

    run(tmp_path, test)


@pytest.mark.parametrize("forwards", [False, True])
def test_a_session_goes_on_behind_a_message_whose_body_is_damaged(tmp_path: Path, forwards: bool) -> None:
    """A dead letter without a body stays where it is, also where dead letters are forwarded."""

    async def test(rig: Rig) -> None:
        await rig.create(QueueDescription("target"))
        to = "target" if forwards else None
        await rig.create(QueueDescription("turns", requires_session=True, forward_dead_lettered_to=to))
        await rig.send(12, body(1), body(2), body(3), session_id="s")
        await rig.restart(body(2))
        await rig.receive_and_delete("turns", SessionRequest("s", 0))
        assert rig.delivered() == [1, 3]
        assert [each.sequence_number for each in await rig.peek("turns", DEAD)] == [2]
        assert await rig.peek("target") == []

    run(tmp_path, test)


def test_a_message_that_is_locked_loses_its_lock_with_its_body(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, body(1), body(2))
        await rig.restart(body(1))
        rig.shard.offer((OpenReceiver(LINK, Address("orders"), ReceiveMode.PEEK_LOCK),))
        rig.shard.offer((SetCredit(LINK, 2, 1 << 30),))
        await rig.settle()
        [first, second] = [effect for effect in rig.connection.effects if isinstance(effect, Deliver)]
        await rig.read(first.message.body_row)
        assert rig.shard.body(first.message) is LOST_BODY
        assert rig.shard.body(second.message) == body(2)
        assert rig.namespace.totals().locks == 1
        assert rig.namespace.totals().dead_letters == 1

    run(tmp_path, test)


@pytest.mark.parametrize("how", ["scheduled", "claimed"])
def test_a_message_that_waits_or_is_claimed_is_dead_lettered_too(tmp_path: Path, how: str) -> None:
    async def test(rig: Rig) -> None:
        if how == "scheduled":
            later = Message(len(body(1)), scheduled_at_ms=NOW_MS + 1_000_000)
            await rig.ask(lambda to: Schedule(Address("orders"), [(later, Sections(body(1)))], to))
        else:
            await rig.send(ORDERS, body(1), body(2))
            await rig.ask(lambda to: ClaimMessages(Address("orders"), "lake", 10, 1 << 30, to))
        [message, *_] = await rig.peek("orders")
        await rig.restart(body(1))
        await rig.read(message.body_row)
        [dead] = await rig.peek("orders", DEAD)
        assert (dead.sequence_number, dead.state, reason(dead)) == (1, MessageState.ACTIVE, "StoreDamaged")
        totals = rig.namespace.totals()
        assert (totals.scheduled_messages, totals.claimed_messages) == (0, int(how == "claimed"))
        await rig.restart()
        assert len(await rig.peek("orders", DEAD)) == 1

    run(tmp_path, test)


def test_all_copies_that_share_a_body_lose_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        names = ("a", "b", "c")
        await rig.create(TopicDescription("events"), *(SubscriptionDescription("events", n) for n in names))
        await rig.send(8, body(1))
        [message] = await rig.peek("events/subscriptions/a")
        await rig.restart(body(1))
        await rig.read(message.body_row)
        for name in names:
            path = f"events/subscriptions/{name}"
            assert await rig.peek(path) == []
            assert [reason(each) for each in await rig.peek(path, DEAD)] == ["StoreDamaged"]
        assert (await rig.shard.health())["lost_bodies"] == 1

    run(tmp_path, test)


def test_a_dead_letter_without_a_body_is_not_forwarded(tmp_path: Path) -> None:
    """Neither at once nor after a restart, which looks at all that could be."""

    async def test(rig: Rig) -> None:
        await rig.create(QueueDescription("target"))
        await rig.create(QueueDescription("source", forward_dead_lettered_to="target"))
        await rig.send(12, body(1), body(2))
        [message, _] = await rig.peek("source")
        await rig.restart(body(1))
        await rig.read(message.body_row)
        for _ in range(2):
            assert await rig.peek("target") == []
            assert [reason(each) for each in await rig.peek("source", DEAD)] == ["StoreDamaged"]
            await rig.restart()
            await rig.settle()

    run(tmp_path, test)


def test_a_body_that_a_topic_waits_for_is_lost_to_its_transfer_dead_letters(tmp_path: Path) -> None:
    """A scheduled message of a topic that falls due while the broker is down."""

    async def test(rig: Rig) -> None:
        await rig.create(TopicDescription("events"), SubscriptionDescription("events", "all"))
        later = Message(len(body(1)), scheduled_at_ms=NOW_MS + 1)
        await rig.ask(lambda to: Schedule(Address("events"), [(later, Sections(body(1)))], to))
        await rig.restart(body(1))
        rig.shard._driving._now_ms = lambda: NOW_MS + 10
        rig.shard._driving.run()
        await rig.settle()
        assert await rig.peek("events/subscriptions/all") == []
        [dead] = await rig.peek("events", SubQueue.TRANSFER_DEAD_LETTER)
        assert reason(dead) == "StoreDamaged"
        assert not rig.failures

    run(tmp_path, test)


def test_in_a_session_an_event_tells_of_the_gap(tmp_path: Path) -> None:
    """And a state that is damaged is cleared."""

    async def test(rig: Rig) -> None:
        await rig.create(QueueDescription("turns", requires_session=True))
        await rig.send(8, body(1), body(2), body(3), session_id="s")
        rig.shard.offer(
            (
                OpenReceiver(LINK, Address("turns"), ReceiveMode.PEEK_LOCK, SessionRequest("s", 0)),
                SetSessionState(Address("turns"), "s", body(9), ReplyTo(1, 0, 1)),
            )
        )
        await rig.settle()
        rows = {message.body_row for message in await rig.peek("turns")}
        last_row = await rig.store.last_body_row()
        await rig.restart(body(2), body(9))
        await rig.read(*rows, last_row)
        assert [message.sequence_number for message in await rig.peek("turns")] == [1, 3]
        assert [reason(each) for each in await rig.peek("turns", DEAD)] == ["StoreDamaged"]
        queue = rig.namespace._entities.queues[8]
        assert queue.sessions is not None
        assert list(queue.sessions.states.all_messages()) == []
        assert (await rig.shard.health())["lost_bodies"] == 2
        assert not rig.failures
        rows_of_events = await rig.store._read("SELECT no, data FROM event")
        events = [event for no, data in rows_of_events for event in event_rows.unpack(no, data)]
        [told] = [event for event in events if event.type == EventType.DEAD_LETTERED]
        assert (told.session_id, told.sequence_number, told.reason) == ("s", 2, "StoreDamaged")

    run(tmp_path, test)


def test_a_row_that_cannot_be_read_at_all_costs_all_its_messages_their_bodies(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, body(1), body(2))
        [message, _] = await rig.peek("orders")
        await rig.shard.stop()
        with sqlite3.connect(tmp_path / "peeklock.db") as db:
            db.execute("DELETE FROM body")
        db.close()
        await rig.start()
        await rig.read(message.body_row)
        assert len(await rig.peek("orders", DEAD)) == 2
        await rig.send(ORDERS, body(3))  # which gets a row of its own
        [other] = await rig.peek("orders")
        assert other.body_row > message.body_row

    run(tmp_path, test)


def test_an_error_of_the_disk_is_no_damage(tmp_path: Path) -> None:
    """The broker stops, and nothing is dead-lettered: what is on the disk is not known."""

    class Unreadable(sqlite3.Connection):
        fails = False

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if Unreadable.fails and sql.startswith("SELECT data FROM body"):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_READ"
                raise error
            return super().execute(sql, *values)

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, body(1))
        [message] = await rig.peek("orders")
        rig.connect = lambda *args, **options: sqlite3.connect(*args, factory=Unreadable, **options)
        await rig.restart()
        Unreadable.fails = True
        rig.connection.wanted = {message.body_row}
        rig.shard._driver.want(1, rig.connection.wanted)
        rig.shard._driving.run()
        await asyncio.sleep(0.1)
        [failure] = rig.failures
        assert isinstance(failure, StoreFailed)
        assert rig.namespace.totals().dead_letters == 0

    run(tmp_path, test)


def test_what_is_read_wrong_once_is_no_damage(tmp_path: Path) -> None:
    """A body is read again, past what SQLite keeps of it, before anybody acts on it."""

    class Flaky(sqlite3.Connection):
        wrong = 0

        def execute(self, sql: str, *values: Any) -> Any:
            rows = super().execute(sql, *values)
            if Flaky.wrong and sql.startswith("SELECT data FROM body"):
                Flaky.wrong -= 1
                [[data]] = rows.fetchall()
                return _Rows([(data[:-1] + b"?",)])
            return rows

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, body(1))
        [message] = await rig.peek("orders")
        rig.connect = lambda *args, **options: sqlite3.connect(*args, factory=Flaky, **options)
        await rig.restart()
        Flaky.wrong = 1
        await rig.read(message.body_row)
        assert rig.namespace.totals().dead_letters == 0
        assert rig.shard.body(message) == body(1)

    run(tmp_path, test)


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> list[Any]:
        return self._rows


@pytest.mark.parametrize("damaged", [3, 4])
def test_a_start_dead_letters_so_many_and_no_more(
    tmp_path: Path, damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit and one past: then the broker stops and says why."""
    monkeypatch.setattr(driver, "LOST_BODIES_MAX", 3)

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 16)))
        [message, *_] = await rig.peek("orders")
        await rig.restart(*map(body, range(10, 10 + damaged)))
        await rig.read(message.body_row)
        assert len(rig.failures) == (damaged > 3)
        if rig.failures:
            assert isinstance(rig.failures[0], StoreDamaged)
            assert "more than 3 bodies are damaged" in str(rig.failures[0])
        else:
            assert rig.namespace.totals().dead_letters == 3

    run(tmp_path, test)


def test_a_repair_dead_letters_all_at_once_and_says_which(tmp_path: Path) -> None:
    """Offline, and again it finds nothing to do."""

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 16)))
        await rig.shard.stop()
        for number in (11, 14):
            damage(tmp_path, body(number))
        for expected in (["message 2 of 'orders'", "message 5 of 'orders'"], []):
            # In a thread: the command has a loop of its own.
            asked = await asyncio.to_thread(CliRunner().invoke, main, ["check", "--repair", str(tmp_path)])
            assert asked.exit_code == 0
            said = [line.partition(" was ")[0] for line in asked.output.splitlines() if " was " in line]
            assert [line for line in said if line.startswith("message ")] == expected
        await rig.start()
        assert [each.sequence_number for each in await rig.peek("orders", DEAD)] == [2, 5]

    run(tmp_path, test)


def test_what_a_repair_says_agrees_with_itself_and_with_the_check_after_it(tmp_path: Path) -> None:
    """A body whose message was dead-lettered is known until the dead letter goes; a new damage beside it is
    not. Req: R-03."""

    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 16)))
        await rig.shard.stop()

        async def asked(*options: str) -> tuple[int, list[str]]:
            found = await asyncio.to_thread(CliRunner().invoke, main, ["check", *options, str(tmp_path)])
            return found.exit_code, [line for line in found.output.splitlines() if " events in " not in line]

        damage(tmp_path, body(12))
        status, lines = await asked("--repair")
        assert status == SOUND
        assert not any("nothing was changed" in line for line in lines)
        assert lines[-3:] == [
            "1 damage found",
            "message 3 of 'orders' was dead-lettered without its body",
            "1 message dead-lettered; the damaged bytes stay for rescue until it is completed or deleted",
        ]
        known = [
            "KNOWN: body row 1 fails the checksum of the payload in slot 2; message 3 of 'orders' (dead "
            "letters) was dead-lettered without it",
            "1 message was dead-lettered before without the damaged body; its bytes stay for rescue until it "
            "is completed or deleted",
            "no other damage found",
        ]
        for options in ([], ["--repair"]):
            status, lines = await asked(*options)
            assert (status, lines[-3:]) == (SOUND, known)

        damage(tmp_path, body(14))
        status, lines = await asked()
        assert status == DAMAGED
        assert lines[-4:-2] == [
            "DAMAGED: body row 1 fails the checksum of the payload in slot 4; message 5 of 'orders' needs it",
            known[0],
        ]
        assert lines[-1] == "1 damage found; nothing was changed"
        await rig.start()

    run(tmp_path, test)


def test_a_row_that_cannot_be_read_is_known_once_all_its_messages_are_dead_lettered(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 13)))
        await rig.shard.stop()
        flip(tmp_path / "peeklock.db", "body", 1, 10)
        asked = await asyncio.to_thread(CliRunner().invoke, main, ["check", "--repair", str(tmp_path)])
        assert asked.exit_code == SOUND
        report = check(tmp_path)
        assert (report.damages, report.handled, report.exit_status) == ([], 3, SOUND)
        assert any("; 3 messages were dead-lettered without it" in line for line in report.lines)
        await rig.start()

    run(tmp_path, test)


def test_a_repair_says_which_state_of_a_session_it_cleared(tmp_path: Path) -> None:
    """A state is no message: it has no number and goes to no dead-letter queue."""

    async def test(rig: Rig) -> None:
        await rig.create(QueueDescription("turns", requires_session=True))
        await rig.send(8, body(2), session_id="s")
        rig.shard.offer(
            (
                OpenReceiver(LINK, Address("turns"), ReceiveMode.PEEK_LOCK, SessionRequest("s", 0)),
                SetSessionState(Address("turns"), "s", body(1), ReplyTo(1, 0, 1)),
            )
        )
        await rig.settle()
        await rig.shard.stop()
        damage(tmp_path, body(1))
        asked = await asyncio.to_thread(CliRunner().invoke, main, ["check", "--repair", str(tmp_path)])
        assert "the state of session 's' was cleared: 'turns (session states)'" in asked.output
        assert "dead-lettered" not in asked.output
        # Its row is dropped by the broker, with one of the next batches.
        assert asked.output.splitlines()[-1] == "1 damage is left, and no message needs what is damaged"
        await rig.start()

    run(tmp_path, test)


def test_a_repair_says_that_what_is_left_is_needed_by_nobody(tmp_path: Path) -> None:
    """Its status is that of a check after it."""
    asyncio.run(_store_with_a_stray_row(tmp_path))
    flip(tmp_path / "peeklock.db", "body", 2, 25)
    asked = CliRunner().invoke(main, ["check", "--repair", str(tmp_path)])
    assert asked.exit_code == check(tmp_path).exit_status == DAMAGED
    assert asked.output.splitlines()[-1] == "1 damage is left, and no message needs what is damaged"


async def _store_with_a_stray_row(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    await store.commit(Batch(1, [], {2: [b"payload"]}))
    await store.close()


def test_reclaiming_passes_over_a_damaged_row(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.send(ORDERS, *map(body, range(10, 16)))
        [message, *_] = await rig.peek("orders")
        row = message.body_row
        await rig.restart(body(10))
        found = await rig.store.read_body_rows([row])
        ledger = rig.engine.ledger
        ledger._sparse[row] = 0
        rig.engine.reclaim_offer(ReclaimFound(rows=found), NOW_MS)
        assert row not in ledger._sparse
        assert {each.body_row for each in await rig.peek("orders")} == {row}

    run(tmp_path, test)


# Planted bugs: each is found by the test above it


def test_forwarding_a_dead_letter_without_a_body_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: `is_bodiless` is not asked where dead letters are passed on."""

    class Blind:
        """The module of overlays, which sees no dead letter without a body."""

        def __getattr__(self, name: str) -> Any:
            return (lambda message: False) if name == "is_bodiless" else getattr(properties, name)

    monkeypatch.setattr(enqueue, "overlays", Blind())
    with pytest.raises(AssertionError):
        test_a_dead_letter_without_a_body_is_not_forwarded(tmp_path)


def test_taking_an_error_of_the_disk_for_damage_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: any failure to read a row counts as damage."""
    read = SqliteStore._body_row

    def careless(self: SqliteStore, db: sqlite3.Connection, row: int) -> bytes | None:
        try:
            return read(self, db, row)
        except StoreFailed:
            return None

    monkeypatch.setattr(SqliteStore, "_body_row", careless)
    with pytest.raises((AssertionError, ValueError)):
        test_an_error_of_the_disk_is_no_damage(tmp_path)
