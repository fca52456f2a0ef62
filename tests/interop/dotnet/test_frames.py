"""Our encoder of .NET's frames, compared with frames of the client itself."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.types import Array, Int, Long, Symbol, Timestamp, UInt
from tests.interop.dotnet import frames
from tests.interop.dotnet.frames import ACCEPTED, WINDOW, WINDOW_UNBOUNDED

RECORDED = tomllib.loads((Path(__file__).parent / "frames.toml").read_text())

HOST = "plh6.test"
RECEIVER = f"amqp://{HOST}/-d56a0d0c;7:14:15:source(address:/w-q,filter:[])"
SESSION_RECEIVER = (
    f"amqp://{HOST}/-b2dea634;22:29:30:source(address:/w-s,filter:[com.microsoft:session-filter:A])"
)
TRANSACTION = bytes.fromhex("ea0903c78b3d9e39e26a853635c8e62f")
CONTROLLER = "f3e7f23db4b74c38aeef05387db36c35"
TOKEN = (
    "SharedAccessSignature sr=amqps%3A%2F%2Fplh6.test%2F"
    "&sig=OOfSoSPCpt4puoCEHcg%2B8jSS%2FzsxoyWZqUfpkoR71Ug%3D&se=1795367860&skn=RootManageSharedAccessKey"
)


def timeout(ms: int) -> dict[Any, Any]:
    return {Symbol("com.microsoft:timeout"): UInt(ms)}


def attached(channel: int, name: str, address: str, near: str, **fields: Any) -> bytes:
    """Make the attach of a receiver."""
    filters = fields.pop("filter", {})
    source = frames.source(f"/{address}", filter=filters)
    target = frames.target(f"{address}-{near}")
    return frames.attach(channel, name, 0, receives=True, source=source, target=target, **fields)


def credit(channel: int, incoming: int, delivery_count: int, credit: int, **fields: Any) -> bytes:
    return frames.flow(channel, (incoming, WINDOW_UNBOUNDED), 1, 0, delivery_count, credit, **fields)


def sent(channel: int, number: int, tag: str, payload: bytes, **fields: Any) -> bytes:
    [made] = frames.transfer(channel, 0, number, bytes.fromhex(tag), payload, **fields)
    return made


def hello(message_id: str) -> bytes:
    """Make a message of five zeros."""
    return frames.message(properties={"message-id": message_id}, body=frames.section(0x75, bytes(5)))


def batch() -> bytes:
    messages = b"".join(frames.section(0x75, hello(f"s{number}")) for number in range(8))
    return frames.message(properties={"message-id": "s0"}, body=messages)


def asked(number: int, of: int, reply_to: str, operation: str, tracking: str, link: str, body: Any) -> bytes:
    """Make a request: the `of`th of its pair."""
    properties = {
        "operation": f"com.microsoft:{operation}",
        "com.microsoft:server-timeout": UInt(60_000),
        "com.microsoft:tracking-id": tracking,
        "associated-link-name": link,
    }
    request = frames.request(of, reply_to, properties, body)
    return sent(3, number, "", request, settled=True, batchable=False)


def of_receiver(number: int, operation: str, tracking: str, body: Any) -> bytes:
    reply_to = "bf14e69a9235468090fb90c8d63f2a8a"
    return asked(number, number + 1, reply_to, operation, tracking, RECEIVER, body)


def of_session(number: int, operation: str, tracking: str, body: Any) -> bytes:
    reply_to = "c698c796ea304a8fae148dd4ec02845e"
    return asked(number, number + 1, reply_to, operation, tracking, SESSION_RECEIVER, body)


def put_token() -> bytes:
    properties = {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": f"amqp://{HOST}/w-q",
        "expiration": Timestamp(1_795_367_860_267),
    }
    request = frames.request(1, "fc7bb32aa5db4b6aaaa3d820f7f001d1", properties, TOKEN)
    return sent(0, 0, "", request, settled=True, batchable=False)


REASON = {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "because"}
LOCK = Array(uuid.UUID, [uuid.UUID("df5ba7ee-38f1-a805-4239-09321d544de5")])
MANAGED = {**timeout(59_998), Symbol("com.microsoft:entity-type"): "entity-mgmt"}
A = {"session-id": "A"}

MADE: dict[str, Callable[[], bytes]] = {
    "sasl-init": frames.sasl_init,
    "open": lambda: frames.open_(f"amqp://{HOST}/-428d1874", HOST),
    "begin for $cbs": lambda: frames.begin(0, WINDOW),
    "begin for a link": lambda: frames.begin(1, WINDOW_UNBOUNDED),
    "attach $cbs sender": lambda: frames.attach(
        0,
        "duplex0:1:2:sender",
        0,
        receives=False,
        snd=1,
        source=frames.source(),
        target=frames.target("$cbs"),
        properties=timeout(59_733),
    ),
    "attach $cbs receiver": lambda: frames.attach(
        0,
        "duplex0:1:2:receiver",
        1,
        receives=True,
        snd=1,
        source=frames.source("$cbs"),
        target=frames.target("fc7bb32aa5db4b6aaaa3d820f7f001d1"),
        properties=timeout(59_733),
    ),
    "flow of the $cbs reply link": lambda: frames.flow(0, (0, WINDOW), 1, 1, 0, 50),
    "put-token": put_token,
    "attach sender": lambda: frames.attach(
        1,
        f"amqp://{HOST}/-428d1874;0:5:6",
        0,
        receives=False,
        counted=True,
        source=frames.source("w-q-662b7678-4c56-4162-805e-3091de1cff5c"),
        target=frames.target("/w-q"),
        properties=timeout(59_675),
    ),
    "transfer, one message": lambda: sent(1, 0, "01000000", hello("m1")),
    "transfer, batch": lambda: sent(1, 0, "01000000", batch(), message_format=frames.BATCH_FORMAT),
    "detach": lambda: frames.detach(1, 0),
    "end": lambda: frames.end(1),
    "close": frames.close,
    "attach receiver, peek-lock": lambda: attached(
        2, RECEIVER, "w-q", "d02bae9a-577c-4608-8788-b05a1db530da", rcv=1
    ),
    "flow, credit": lambda: credit(2, 0, 0, 8),
    "disposition complete": lambda: frames.disposition(2, 0, ACCEPTED),
    "disposition abandon": lambda: frames.disposition(2, 1, frames.modified()),
    "disposition abandon with properties": lambda: frames.disposition(
        2, 2, frames.modified({Symbol("k"): "v", Symbol("n"): Int(5)})
    ),
    "disposition defer": lambda: frames.disposition(2, 3, frames.modified(undeliverable=True)),
    "disposition dead-letter, no reason": lambda: frames.disposition(2, 5, frames.rejected()),
    "disposition dead-letter with reason": lambda: frames.disposition(2, 6, frames.rejected(REASON)),
    "attach $management sender": lambda: frames.attach(
        3,
        "duplex7:16:17:sender",
        0,
        receives=False,
        snd=1,
        source=frames.source(),
        target=frames.target("w-q/$management"),
        properties=MANAGED,
    ),
    "update-disposition": lambda: of_receiver(
        0,
        "update-disposition",
        "62e763b7-07ce-45a9-8cc4-107d22cd053e",
        {"lock-tokens": LOCK, "disposition-status": "completed"},
    ),
    "receive-by-sequence-number": lambda: of_receiver(
        1,
        "receive-by-sequence-number",
        "c76dfe6e-40f7-49ab-af25-6d2ce5b0fa50",
        {"sequence-numbers": Array(Long, [93]), "receiver-settle-mode": UInt(1)},
    ),
    "attach receive-and-delete": lambda: attached(
        4,
        f"amqp://{HOST}/-d56a0d0c;7:20:21:source(address:/w-q,filter:[])",
        "w-q",
        "3377a08c-e0ae-45ec-9076-707151aaacd3",
        snd=1,
    ),
    "flow, drain": lambda: credit(4, 4, 4, 50, drain=True),
    "flow after the answer to a drain": lambda: credit(4, 4, 54, 0, available=2**32 - 1),
    "attach session receiver": lambda: attached(
        2,
        SESSION_RECEIVER,
        "w-s",
        "429e64ec-04f1-4bad-8783-c3f8846be847",
        rcv=1,
        filter={Symbol("com.microsoft:session-filter"): "A"},
    ),
    "get-session-state": lambda: of_session(
        0, "get-session-state", "f29d5db7-b037-4fc4-af1d-c26bc2795135", A
    ),
    "set-session-state": lambda: of_session(
        1, "set-session-state", "b832f030-aaf6-4066-a64f-a4d8d4274779", {**A, "session-state": b"state"}
    ),
    "renew-session-lock": lambda: of_session(
        4, "renew-session-lock", "75ade2b7-5aa3-4bc0-b6c9-7b850194401b", A
    ),
    "attach coordinator": lambda: frames.attach(
        3,
        CONTROLLER,
        0,
        receives=False,
        source=frames.source(CONTROLLER, moves=True),
        target=frames.coordinator(),
    ),
    "declare": lambda: sent(3, 0, "0100000000000000", frames.declare(), batchable=False),
    "disposition accepted in a transaction": lambda: frames.disposition(
        2, 0, frames.transactional(TRANSACTION, ACCEPTED)
    ),
    "transfer in a transaction": lambda: sent(
        1, 1, "02000000", hello("tx1"), state=frames.transactional(TRANSACTION)
    ),
    "discharge": lambda: sent(
        3, 1, "0200000000000000", frames.discharge(TRANSACTION, False), batchable=False
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_frame_is_that_of_the_client(name: str) -> None:
    """Req: T-11."""
    assert MADE[name]().hex() == RECORDED[name].replace("\n", "")


def test_a_large_message_is_cut_as_the_client_cuts_it() -> None:
    payload = frames.message(properties={"message-id": "big"}, body=frames.section(0x75, bytes(150_000)))
    made = frames.transfer(1, 0, 0, b"\1\0\0\0", payload)
    # In the first the client reserves five bytes for the delivery-id; this one takes one.
    assert [len(frame) for frame in made] == [65_532, 65_536, 8 + 17 + 19_018]


def test_a_full_batch_has_the_size_that_the_client_counts() -> None:
    """The client counts eight bytes more than it sends."""
    session = "s" * 128
    annotations = {Symbol("x-opt-partition-key"): session}

    def one(number: int) -> dict[str, Any]:
        properties = {"message-id": f"{'m' * 100}{number}", "group-id": session}
        return {"annotations": annotations, "properties": properties}

    messages = [
        frames.section(0x75, frames.message(**one(number), body=frames.section(0x75, bytes(10))))
        for number in range(606)
    ]
    payload = frames.message(**one(0), body=b"".join(messages))
    assert len(payload) + 8 == 262_097
    made = frames.transfer(1, 0, 0, b"\1\0\0\0", payload, message_format=frames.BATCH_FORMAT)
    assert len(made[-1]) == 8 + 17 + 58
