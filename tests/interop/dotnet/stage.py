"""The base of all steps of a scenario: the client, the words of the step, waiting for the broker.

Owns: what a player requests of the world, how it waits, and the text of a failure. Must not know any step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Any

from peeklock.amqp.types import Long, Timestamp
from tests.interop.dotnet.client import Client, Composite, Link, Node, Unreadable, composite
from tests.interop.dotnet.receiving import Receiving
from tests.interop.dotnet.scenario import Scenario
from tests.interop.dotnet.words import BadWords, read

NODE_CREDIT = 50
"""Credit for the answers of a node; given again when half of it is used."""
LOG_LINES = 12
"""Frames at the end of the log that are shown with a failure."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a transport; the previous one is over."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write `client.output`, and do not wait."""


@dataclass(frozen=True, slots=True)
class Read:
    """Write `client.output`, then wait for bytes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Break the transport, without a word."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Let time pass, while the broker works."""

    ms: int


Action = Connect | Write | Read | Cut | Pass
Waits = Generator[Action, None, None]


class PlayFailed(AssertionError):
    """The broker did not answer as the client relies on."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where and with which key: the host of the connection string, the entities' names there, a rule's
    key."""

    host: str
    key_name: str
    key: str
    names: dict[str, str]


class Stage:
    """Base of the groups of steps; `player.Player` has them all."""

    def __init__(self, scenario: Scenario, account: Account, now_ms: Callable[[], int]) -> None:
        self.scenario = scenario
        self.account = account
        self.now_ms = now_ms
        self.client = Client(account.host, Random(scenario.name))
        self.receiving = Receiving(self._value)
        self.links: dict[str, Link] = {}
        self.nodes: dict[str, Node] = {}
        self.cbs: Node | None = None
        self.transactions: dict[str, bytes] = {}
        self.kept: dict[str, Any] = {}
        self._step = scenario.steps[0]
        self._nothing_more = False

    # From the transport

    def received(self, data: bytes) -> None:
        """Read what came; without bytes: nothing more comes by itself for now."""
        self._nothing_more = not data
        try:
            self.client.received(data)
        except Unreadable as failure:
            raise self._failed(str(failure)) from failure

    def ended(self) -> None:
        """Record that the broker has ended the stream."""
        self.client.ended = self._nothing_more = True

    def until(self, true: Callable[[], Any], expected: str) -> Waits:
        """Read until a condition holds."""
        while not true():
            if self.client.ended:
                raise self._failed(f"expected {expected}, and the stream has ended")
            self._nothing_more = False
            yield Read()
            if self._nothing_more and not true():
                raise self._failed(f"expected {expected}, and nothing more came")

    def _failed(self, text: str) -> PlayFailed:
        came = "\n    ".join(self.client.log[-LOG_LINES:])
        where = f"scenario {self.scenario.name}, line {self._step.line}: {self._step.text}"
        return PlayFailed(f"{where}\n  {text}\n  the last frames:\n    {came}")

    def _check(self, true: object, text: str) -> None:
        if not true:
            raise self._failed(text)

    def _nothing_left(self) -> None:
        """Check that a step waited for all that came, also for the end of links and sessions."""
        left = [f"a delivery on {link.label}" for link in self.links.values() if link.left_over]
        for name, node in {"$cbs": self.cbs, **self.nodes}.items():
            if node is not None and len(node.receiver.deliveries) > node.read:
                left.append(f"an answer of {name}")
        left += self.client.surprises()
        self._check(not left, f"expected nothing else at the end, but there is {', '.join(left)}")

    # Words

    def path(self, address: str) -> str:
        """Return an address with the entity's real name."""
        name, slash, rest = address.partition("/")
        return self.account.names.get(name, name) + slash + rest

    def option(self, name: str, default: Any = None) -> Any:
        text = self._step.options.get(name)
        return default if text is None else self._value(text)

    def _value(self, text: str) -> Any:
        return read(text, self._look_up)

    def _look_up(self, name: str, arguments: list[Any]) -> Any:
        match name:
            case "now":
                return Timestamp(self.now_ms() + (int(arguments[0]) if arguments else 0))
            case "token" | "sequence":
                label, index = arguments[0], arguments[1]
                if label in self.nodes:
                    return self.receiving.of_answer(name, self.nodes[label], index)
                return self.receiving.of_delivery(name, self.links[label], index)
            case "number":
                return Long(self.nodes[arguments[0]].last[0x77][0]["sequence-numbers"][arguments[1]])
            case "kept":
                return self.kept[arguments[0]]
            case "following":
                return Long(self.receiving.of_answer("sequence", self.nodes[arguments[0]], arguments[1]) + 1)
        raise BadWords(f"no such value: {name}")

    # Shared by several groups of steps

    def _credit(self, link: Link) -> Waits:
        """Wait for the credit that the client needs to send."""
        yield from self.until(lambda: link.credit > 0, f"credit for {link.label}")

    def _transaction(self) -> bytes | None:
        name = self._step.options.get("in")
        return None if name is None else self.transactions[name]

    def _settled(self, found: Composite, kind: str, condition: str | None) -> None:
        """Check an outcome, which in a transaction is provisional unless it is refused."""
        state = composite(found["state"])
        transaction = self._transaction()
        if transaction is None or condition is not None:
            self._check(found["settled"], f"expected a settled disposition, not {found}")
        elif state is None or state.kind != "transactional" or state["txn-id"] != transaction:
            raise self._failed(f"expected a state in {self._step.options['in']}, not {state}")
        else:
            state = composite(state["outcome"])
        self._check(state is not None and state.kind == kind, f"expected {kind}, not {state}")
        if kind == "rejected" and state is not None:
            error = composite(state["error"])
            named = error and str(error["condition"])
            self._check(named == condition, f"expected {condition}, not {error}")

    def _read(self, node: Node) -> Waits:
        """Wait for the answer to the last request, and read it."""
        node.read += 1
        index = node.read - 1
        yield from self.until(lambda: len(node.receiver.deliveries) > index, f"answer {node.read}")
        delivery = node.receiver.deliveries[index]
        if node.receiver.credit <= NODE_CREDIT // 2:
            self.client.flow(node.receiver, NODE_CREDIT)
        self._check(delivery.settled, "expected a settled answer")
        node.last = delivery.sections()
        correlation = node.last[0x73][0][5]
        self._check(
            correlation == f"request{node.read}" and type(correlation) is str,
            f"expected correlation-id 'request{node.read}', a string, not {correlation!r}",
        )
