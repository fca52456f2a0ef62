"""Steps that send messages and requests, and that declare and discharge transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peeklock.amqp.types import Int, Symbol, UInt
from tests.interop.dotnet import frames
from tests.interop.dotnet.client import Link, Node, composite
from tests.interop.dotnet.scenario import Step
from tests.interop.dotnet.stage import Stage, Waits
from tests.interop.dotnet.words import expand

SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")


class Sending(Stage):
    """Steps of senders, requests and transactions."""

    # Sending

    def client_send(self, step: Step) -> Waits:
        """Send a message, or several as one: those of a range, and those behind `|`."""
        link = self.links[step.words[0]]
        lost = "lost" in step.words
        made = [one for part in (step.options, *step.parts) for one in self._messages(part)]
        message_format, payload = 0, made[0][0]
        if len(made) > 1:
            # The envelope has the fields of the first of them.
            message_format = frames.BATCH_FORMAT
            first = {key: value for key, value in made[0][1].items() if key in ("message-id", "group-id")}
            payload = frames.message(annotations=made[0][2], properties=first)
            payload += b"".join(frames.section(0x75, one) for one, _, _ in made)
        if not lost:
            yield from self._credit(link)
        state = self._transaction()
        self.client.send(
            link,
            payload,
            message_format=message_format,
            state=None if state is None else frames.transactional(state),
            dropped=lost,
        )

    def _messages(self, options: dict[str, str]) -> Iterator[tuple[bytes, dict[str, Any], dict[Any, Any]]]:
        """Encode a message for each id of a range, or for each session id of a list; with each its properties
        and annotations."""
        ids: list[str | None] = [*expand(options["id"])] if "id" in options else [None]
        sessions: list[str | None] = [*options["session"].split(",")] if "session" in options else [None]
        if "count" in options:
            sessions *= int(options["count"])
        for number in range(max(len(ids), len(sessions))):
            yield self._message(options, ids[number % len(ids)], sessions[number % len(sessions)])

    def _message(
        self, options: dict[str, str], message_id: str | None, session: str | None
    ) -> tuple[bytes, dict[str, Any], dict[Any, Any]]:
        def given(name: str) -> Any:
            return self._value(options[name]) if name in options else {}

        properties = dict(given("properties"))
        if message_id is not None:
            properties["message-id"] = message_id
        if session is not None:
            properties["group-id"] = session
        annotations = dict(given("annotations"))
        if "at" in options:
            annotations[SCHEDULED] = self._value(options["at"])
        if "value" in options:
            body = frames.section(0x77, given("value"))
        elif "sequence" in options:
            body = b"".join(frames.section(0x76, one) for one in given("sequence"))
        else:
            sizes = options["body"].split(",")
            body = b"".join(frames.section(0x75, bytes(int(size))) for size in sizes)
        made = frames.message(
            header=given("header"),
            delivery_annotations=given("delivery-annotations"),
            annotations=annotations,
            properties=properties,
            application_properties=given("app"),
            body=body,
            footer=given("footer"),
        )
        return made, properties, annotations

    def client_give_up(self, step: Step) -> None:
        """Release an unanswered delivery as its sender, after the time-out."""
        link = self.links[step.words[0]]
        number = link.sends[int(step.words[1])]
        data = frames.disposition(link.session.channel, number, frames.RELEASED, settled=True, sends=True)
        self.client.write(f"disposition {link.label} released", data)

    def broker_accepted(self, step: Step) -> Waits:
        """Wait until sends, by their place on the link, are settled as accepted."""
        for link, number in self._sends(step):
            yield from self._outcome(link, number, "accepted")

    def broker_rejected(self, step: Step) -> Waits:
        """Wait until a send is settled as rejected, with a condition."""
        for link, number in self._sends(step):
            yield from self._outcome(link, number, "rejected", step.words[2])

    def _sends(self, step: Step) -> Iterator[tuple[Link, int]]:
        link = self.links[step.words[0]]
        if step.words[1] == "last":
            yield link, link.sends[-1]
            return
        for index in expand(step.words[1]):
            yield link, link.sends[int(index)]

    def _outcome(self, link: Link, number: int, kind: str, condition: str | None = None) -> Waits:
        found = link.session.outcomes
        yield from self.until(lambda: number in found, f"an outcome of send {number}")
        self._settled(found[number], kind, condition)

    # Transactions

    def client_declare(self, step: Step) -> Waits:
        """Declare a transaction and wait for its id: LABEL NAME."""
        link = self.links[step.words[0]]
        yield from self._credit(link)
        self.client.send(link, frames.declare(), batchable=False)
        number, found = link.sends[-1], link.session.outcomes
        yield from self.until(lambda: number in found, "an answer to the declare")
        state = composite(found[number]["state"])
        self._check(state is not None and state.kind == "declared", f"expected declared, not {state}")
        assert state is not None
        self.transactions[step.words[1]] = state["txn-id"]

    def client_commit(self, step: Step) -> Waits:
        """Discharge a transaction."""
        return self._discharge(step, fail=False)

    def client_roll_back(self, step: Step) -> Waits:
        """Discharge a transaction with fail=true."""
        return self._discharge(step, fail=True)

    def _discharge(self, step: Step, *, fail: bool) -> Waits:
        link = self.links[step.words[0]]
        yield from self._credit(link)
        self.client.send(link, frames.discharge(self.transactions[step.words[1]], fail), batchable=False)

    # Requests

    def client_ask(self, step: Step) -> Waits:
        """Send a request: NODE OPERATION BODY; `link=` is the link that it concerns."""
        label, operation, body = step.words
        return self._ask(self.nodes[label], operation, self._value(body))

    def client_schedule(self, step: Step) -> Waits:
        """Send a request to schedule messages, which are written as those of `send`."""
        entries = []
        for part in (step.options, *step.parts):
            for payload, properties, _ in self._messages(part):
                entry = {"message": payload, "message-id": properties.get("message-id")}
                if "group-id" in properties:
                    session = properties["group-id"]
                    entry |= {"session-id": session, "partition-key": session, "via-partition-key": session}
                entries.append({key: value for key, value in entry.items() if value is not None})
        return self._ask(self.nodes[step.words[0]], "schedule-message", {"messages": entries})

    def _ask(self, node: Node, operation: str, body: Any) -> Waits:
        yield from self._credit(node.sender)
        properties = {
            "operation": f"com.microsoft:{operation}",
            "com.microsoft:server-timeout": UInt(self.scenario.try_ms),
            "com.microsoft:tracking-id": self.client.guid(),
        }
        if "link" in self._step.options:
            properties["associated-link-name"] = self.links[self._step.options["link"]].name
        transaction = self._transaction()
        state = None if transaction is None else frames.transactional(transaction)
        self.client.ask(node, properties, body, state=state)

    def broker_answer(self, step: Step) -> Waits:
        """Wait for an answer: NODE STATUS [BODY]; the body has at least what BODY has."""
        node = self.nodes[step.words[0]]
        yield from self._read(node)
        found = node.last[0x74][0]
        status = int(step.words[1])
        right = found["statusCode"] == status and type(found["statusCode"]) is Int
        self._check(right, f"expected {status}, not {found}")
        self._check("statusDescription" in found, f"expected a statusDescription in {found}")
        if "condition" in step.options:
            condition = self.option("condition")
            self._check(found.get("errorCondition") == condition, f"expected {condition}, not {found}")
        wrong = self.receiving.wrong_answer(node, step)
        self._check(not wrong, wrong)
