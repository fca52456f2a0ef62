"""Rounds of sending to a topic and receiving from its subscriptions, with a broker that dies meanwhile.

Owns: the clients of a round, for copies and rules, and when nothing is left. Must not know: the expected
copies of a message (`copies`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Int, Symbol, Timestamp
from peeklock.demo.broker import BrokerProcess
from tests.kill.clients import Browser, Client, Consumer, Sender, now_ms
from tests.kill.copies import (
    PLACES,
    RULES,
    SINK,
    SIZES,
    TOPIC,
    Copies,
    Copy,
    RuleBook,
    is_scheduled,
    path,
    properties_of,
)
from tests.kill.ledger import Broken, Ledger
from tests.kill.loop import DELIVERIES_MAX, DRAIN_S_MAX, NAMESPACE, WAIT_S_MAX, Loop
from tests.simulation.oracle.records import uid_of

CHANGING = "all"
"""The subscription whose rules change; beside its first one they choose no message."""

CHANGES_MIN = 20
"""Changes of rules that the final checks need. Our choice: a third of what six rounds make on a quiet
machine."""

SCHEDULED_MS_MAX = 300
"""So that some are due while no broker runs."""

LEFT_EMPTY = [
    path("passed"),
    *(f"{path(name)}/$DeadLetterQueue" for name in RULES if name != "strict"),
    f"{path('passed')}/$Transfer/$DeadLetterQueue",
]


class TopicLoop(Loop):
    """Messages of one topic, some of them sent twice, and changes of rules."""

    def __init__(
        self, folder: Path, seed: int, *, options: Sequence[str] = (), namespace: str = NAMESPACE
    ) -> None:
        queues = {SINK: {"MaxDeliveryCount": DELIVERIES_MAX}}
        super().__init__(folder, seed, queues, options, namespace)
        self.sends = Ledger()
        self.copies = Copies(self.sends)
        self.rules = RuleBook()
        self._made = False

    async def round(self, *, polite: bool) -> None:
        """Work for a random time."""
        if not self._made:
            # Not by the configuration file, which would restore what was lost.
            await asyncio.to_thread(make_topic, self.broker)
            self._made = True
        clients = await self.connect()
        await asyncio.sleep(self.random.uniform(0.05, 0.6))
        if self.random.random() < 0.5:
            for client in clients:
                if isinstance(client, Sender):
                    client.stopped = True
            await asyncio.sleep(self.random.uniform(0.0, 0.4))
        if polite:
            await self.stop(clients)
        else:
            await self.kill(clients)

    async def connect(self, *, sends_max: int = 1 << 30, changes_max: int = 1 << 30) -> list[Client]:
        """Connect clients, which begin at once; with the limits of a publisher and of the editor."""
        clients: list[Client] = [
            Editor(self.name("editor"), self.rules, changes_max=changes_max),
            *(
                Publisher(
                    self.name("sender"), self.sends, self.random, TOPIC, repeats=True, sends_max=sends_max
                )
                for _ in range(2)
            ),
            *(Reader(self.name("reader"), self.copies, self.random, place) for place in PLACES),
        ]
        for client in clients:
            await client.connect(self.broker.amqp_port)
        return clients

    def is_enough(self) -> bool:
        """Return whether rules were changed often enough."""
        return self.rules.count > CHANGES_MIN

    async def finish(self) -> None:
        """Receive and complete all that is left, and read the rules a last time."""
        editor = Editor(self.name("editor"), self.rules, changes_max=0)
        readers = [
            Reader(self.name("drainer"), self.copies, self.random, place, careless=False, credit=200)
            for place in PLACES
        ]
        for client in (editor, *readers):
            await client.connect(self.broker.amqp_port)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_S_MAX
        before = -1
        while (
            sum(reader.deliveries for reader in readers) != before
            or any(reader.settling for reader in readers)
            or self.copies.is_waiting()
            or any([await self.count(place) for place in PLACES])
        ):
            before = sum(reader.deliveries for reader in readers)
            await asyncio.sleep(0.2)
            self.check([editor, *readers])
            if loop.time() > deadline:
                raise Broken(f"not drained after {DRAIN_S_MAX} s")
        await asyncio.wait_for(editor.looked.wait(), WAIT_S_MAX)
        for client in (editor, *readers):
            client.close()
        await self.over([editor, *readers])
        for left in LEFT_EMPTY:
            if await self.count(left):
                raise Broken(f"messages are left in {left}")

    async def count(self, address: str) -> int:
        """Return how many messages an entity holds, 100 at most."""
        browser = Browser(self.name("browser"), self.sends, self.random, address)
        await browser.connect(self.broker.amqp_port)
        found = await asyncio.wait_for(browser.found, WAIT_S_MAX)
        browser.close()
        return found

    def verdict(self) -> dict[str, int]:
        """Check the ledger."""
        return {**self.copies.finish(), "changes of rules": self.rules.count}


def make_topic(broker: BrokerProcess, key: str = "") -> None:
    """Create the topic with its subscriptions and rules; `key` is what the connection string lacks."""
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string + key, connection_verify=str(broker.authority())
    ) as administration:
        administration.create_topic(TOPIC, requires_duplicate_detection=True)
        for name, rules in RULES.items():
            about: dict[str, Any] = {"max_delivery_count": DELIVERIES_MAX}
            if name == "passed":
                about["forward_to"] = SINK
            administration.create_subscription(TOPIC, name, **about)
            if "$Default" not in rules:
                administration.delete_rule(TOPIC, name, "$Default")
                for rule, (expression, action) in rules.items():
                    administration.create_rule(
                        TOPIC,
                        name,
                        rule,
                        filter=SqlRuleFilter(expression),
                        action=None if action is None else SqlRuleAction(action),
                    )


class Publisher(Sender):
    """Sends messages whose properties follow from their uids, some scheduled for a little later."""

    def _message(self, uid: int, body_bytes: int | None = None) -> bytes:
        body = b"uid=%08d;" % uid + b"." * SIZES[uid % 4]
        annotations = {}
        if is_scheduled(uid):
            due_ms = now_ms() + self.random.randint(10, SCHEDULED_MS_MAX)
            annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)}
        return encode_message(
            properties=Properties(message_id=str(uid)),
            application_properties=properties_of(uid),
            message_annotations=annotations,
            data=body,
        )


class Reader(Consumer):
    """Receives copies at one place."""

    def __init__(self, name: str, copies: Copies, random: Random, place: str, **options: Any) -> None:
        super().__init__(name, copies, random, place, **options)
        self._copies = copies

    def note(self, event: DeliveryReceived) -> Copy:
        """Return which copy was delivered."""
        sections = scan(event.payload)
        annotations = sections.decode_message_annotations()
        numbers = annotations["x-opt-sequence-number"], annotations["x-opt-enqueue-sequence-number"]
        found = dict(sections.decode_application_properties())
        rule = found.pop("RuleName", None)
        for added in ("DeadLetterReason", "DeadLetterErrorDescription"):
            found.pop(added, None)
        label = sections.decode_properties().subject
        if label is not None:
            found["Label"] = label
        return self._copies.delivered(uid_of(event.payload), self.queue, rule, numbers, found)


class Editor(Client):
    """Reads the rules of a subscription; then adds some and removes some, one at a time."""

    def __init__(self, name: str, rules: RuleBook, *, changes_max: int = 1 << 30) -> None:
        super().__init__(name)
        self.looked = asyncio.Event()
        self._rules = rules
        self._left = changes_max

    def ready(self) -> None:
        self._ask("enumerate-rules", {"top": Int(10_000), "skip": Int(0)}, self._seen)

    def _seen(self, status: int, condition: str | None, body: Any) -> None:
        if status == 200:
            found = {one["rule-description"].value[2] for one in body["rules"]}
            self._rules.check(found - {"$Default"})
            self.looked.set()
            self._go()
        elif status:
            raise Broken(f"the rules were not listed: {status} {condition}")

    def _go(self) -> None:
        if not self._left:
            return
        self._left -= 1
        added = len(self._rules.present) < 20
        name = f"{self.peer.name}-{self._left}" if added else min(self._rules.present)

        def answered(status: int, condition: str | None, _: Any) -> None:
            if status == 200:
                self._rules.changed(name, present=added)
                self._go()
            elif status:
                raise Broken(f"rule {name} was not {'added' if added else 'removed'}: {status} {condition}")

        body: dict[str, Any] = {"rule-name": name}
        if added:
            body["rule-description"] = {"sql-filter": {"expression": f"sys.To = '{name}'"}}
        self._rules.changing(name)
        self._ask("add-rule" if added else "remove-rule", body, answered)

    def _ask(self, operation: str, body: dict[str, Any], answered: Any) -> None:
        self.peer.ask(path(CHANGING), f"com.microsoft:{operation}", body, answered)
