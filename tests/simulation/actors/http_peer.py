"""The protocol side of HTTP clients: their requests, and what they read in the answers.

Owns: messages as requests, answers as messages, and the life of a request: answered, given up, or broken.
Each request has its own connection. Must not know: the broker's internals, the purpose of a request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import UUID

from peeklock.amqp.messaging import scan
from peeklock.auth.sas import generate
from peeklock.broker.vocabulary.message import MessageState
from peeklock.rest.api import DataRequest
from tests.simulation.actors.actors import Shared
from tests.simulation.actors.peer import TOKEN_MS
from tests.simulation.oracle.checker import LOCK_LOST
from tests.simulation.oracle.history import DISABLED, GONE, LIMITED, Lock, Seen, Sent
from tests.simulation.oracle.records import Violation, uid_of
from tests.simulation.oracle.rulebook import ruled
from tests.simulation.world.http_service import Answered, HttpConnection
from tests.simulation.world.shard import Shard

BATCH_TYPE = "application/vnd.microsoft.servicebus.json"

NOT_ALLOWED = "amqp:not-allowed"
CONDITIONS = {403: DISABLED, 404: LOCK_LOST[0], 405: NOT_ALLOWED, 410: GONE[0], 503: LIMITED[1]}
"""The meaning of a status, as an AMQP condition."""

STATES = {
    "Active": MessageState.ACTIVE,
    "Deferred": MessageState.DEFERRED,
    "Scheduled": MessageState.SCHEDULED,
}

Fields = dict[str, str]


class Request:
    """One request in flight."""

    def __init__(
        self, shared: Shared, random: Random, what: str, answered: Callable[[Answered | None], None]
    ) -> None:
        """Connect; a process must listen.

        Args:
            shared: the simulation.
            random: the clients' random source.
            what: for the trace.
            answered: takes the answer; None = it will never be known.
        """
        process = shared.node.process
        assert process is not None
        self.shard: Shard = process.shard_of(shared.tenant)
        self.account = shared.tenant.account()
        self.asked_ms = shared.node.passed_ms
        shared.connections += 1
        self.connection = shared.connections
        shared.checker.connected(self.connection)
        self._shared = shared
        self._what = what
        self._answered = answered
        self.waits = True
        self.heard = True
        """The connection is whole."""
        self._connection = HttpConnection(self.shard.http, random, self._take, self._broken)

    def send(self, method: str, target: str, fields: Fields | None = None, body: bytes = b"") -> None:
        """Ask."""
        account, until_ms = self.account, self._shared.world.now_ms + TOKEN_MS
        token = generate(account.resource, account.key_name, account.key, until_ms)
        headers = {"Host": account.host, "Authorization": token, **(fields or {})}
        lower = {name.lower(): value for name, value in headers.items()}
        path, _, query = target.partition("?")
        self._note("asks")
        self._connection.ask(DataRequest(method, path, query, lower, body, None, tuple(headers.items())))

    def leave(self) -> None:
        """Leave before the answer."""
        if self.waits:
            self._note("goes away")
            self._connection.leave()
            self._end()

    def drop(self) -> None:
        """Turn half open: the answer is lost."""
        if self.waits:
            self._note("is cut off")
            self._connection.drop()
            self._end()

    def _take(self, answered: Answered) -> None:
        assert self.waits, "a second answer"
        self._note(f"is answered {answered.response.status}")
        self.waits = False
        self._connection.leave()
        self._answered(answered)

    def _broken(self) -> None:
        if self.waits:
            self._note("is broken")
            self._end()

    def _end(self) -> None:
        self.waits = False
        self._answered(None)

    def _note(self, text: str) -> None:
        self._shared.world.note(f"{self._what} {text}")


def path_of(address: str) -> str:
    """Return the path of an entity's messages."""
    return f"/{quote(address)}/messages"


def lock_path(address: str, lock: Lock) -> str:
    """Return the path of a lock, as a Location has it."""
    return f"{path_of(address)}/{lock.number}/{UUID(bytes_le=lock.token)}"


def one_message(sent: Sent, payload: bytes) -> tuple[Fields, bytes]:
    """Return a message as headers and a body."""
    own, body = _own(payload)
    fields = {"BrokerProperties": json.dumps(_broker_properties(sent))}
    return {**fields, **{name: json.dumps(value) for name, value in own.items()}}, body


def many_messages(made: list[tuple[Sent, bytes]]) -> tuple[Fields, bytes]:
    """Return messages as the members of a batch."""
    members = []
    for sent, payload in made:
        own, body = _own(payload)
        member = {"Body": body.decode(), "BrokerProperties": _broker_properties(sent), "UserProperties": own}
        members.append(member)
    return {"Content-Type": BATCH_TYPE}, json.dumps(members).encode()


def in_seconds(sent: Sent) -> None:
    """Schedule a message for a whole second, as HTTP dates have it."""
    if sent.scheduled_broker_ms is not None:
        sent.scheduled_broker_ms -= sent.scheduled_broker_ms % 1000


def _own(payload: bytes) -> tuple[dict[str, Any], bytes]:
    sections = scan(payload)
    body = b"".join(value for _, value in sections.decode_body())
    return dict(sections.decode_application_properties()), body


def _broker_properties(sent: Sent) -> dict[str, Any]:
    said: dict[str, Any] = {
        "MessageId": sent.message_id if sent.own_id else None,
        "SessionId": sent.session_id,
        "PartitionKey": sent.partition_key,
        "Label": sent.traits.label,
        "TimeToLive": None if sent.ttl_ms is None else sent.ttl_ms / 1000,
    }
    if sent.scheduled_broker_ms is not None:
        said["ScheduledEnqueueTimeUtc"] = formatdate(sent.scheduled_broker_ms // 1000, usegmt=True)
    return {name: value for name, value in said.items() if value is not None}


def read_message(request: Request, address: str, answered: Answered) -> tuple[Seen, bytes]:
    """Return a received message and its lock token, which is empty if it was deleted. Raises: Violation."""
    headers = dict(answered.response.headers)
    shown = json.loads(headers.pop("BrokerProperties"))
    token, until_ms = b"", None
    location = headers.pop("Location", None)
    if location is not None:
        token = UUID(shown["LockToken"]).bytes_le
        until_ms = request.shard.http.untils[token]
        place = f"{path_of(address)}/{shown['SequenceNumber']}/{shown['LockToken']}"
        if location != f"http://{request.account.host}{place}":
            raise Violation(f"the Location of a lock is {location}, not {place}")
        if shown["LockedUntilUtc"] != formatdate(until_ms // 1000, usegmt=True):
            raise Violation(f"a lock until {until_ms} is shown as {shown['LockedUntilUtc']}")
    seen = Seen(
        uid_of(answered.response.body),
        shown["SequenceNumber"],
        shown["EnqueuedSequenceNumber"],
        shown["DeliveryCount"] - 1,
        until_ms,
        STATES[shown["State"]],
        shown.get("SessionId"),
        shown.get("DeadLetterSource"),
        ruled({name: json.loads(text) for name, text in headers.items()}),
        shown.get("Label"),
    )
    return seen, token


def condition_of(status: int, wrong: str | None = None) -> str:
    """Return a refusal as an AMQP condition; `wrong`: what the request must be refused for."""
    if status == 400 and wrong is not None:
        return wrong
    return CONDITIONS.get(status, f"HTTP {status}")
