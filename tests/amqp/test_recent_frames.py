"""The last frames of a connection: how they are cut, what is kept of them, how they read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.frame_text import described
from peeklock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, frame
from peeklock.amqp.performatives import encode_close
from peeklock.amqp.recent_frames import FRAME_BYTES_MAX, FRAMES_MAX, TRANSFER_BYTES_MAX, RecentFrames
from peeklock.amqp.types import Described, Symbol, UInt

SECRET = b"SharedAccessSignature sr=...&sig=Zm9v"
TRANSFER = composite(composites.TRANSFER, [UInt(3), UInt(7), b"\x01" * 16, UInt(0), False])


def kept(*pieces: bytes) -> list[dict[str, Any]]:
    """Return what is shown of bytes that a peer has sent."""
    recent = RecentFrames()
    for at_ms, piece in enumerate(pieces):
        recent.received.add(piece, at_ms)
    shown = [described(each) for each in recent.frames()]
    json.dumps(shown)
    return shown


def test_frames_have_the_names_of_the_specification() -> None:
    opened = composite(composites.OPEN, ["me", "localhost", UInt(65536)])
    error = encode_close(AmqpError(Symbol("amqp:not-allowed"), "No."))
    frames = kept(AMQP_HEADER + frame(0, opened) + EMPTY_FRAME + frame(0, error))
    assert [each["frame"] for each in frames] == ["header", "open", "empty", "close"]
    assert frames[0]["fields"] == {"protocol": "AMQP", "version": "1.0.0"}
    assert frames[1]["fields"] == {"container-id": "me", "hostname": "localhost", "max-frame-size": 65536}
    assert frames[3]["fields"] == {"error": {"condition": "amqp:not-allowed", "description": "No."}}
    assert {each["direction"] for each in frames} == {"in"}


def test_the_payload_of_a_transfer_is_counted_and_left_out() -> None:
    (shown,) = kept(frame(2, TRANSFER + SECRET))
    assert shown["fields"] == {
        "handle": 3,
        "delivery-id": 7,
        "delivery-tag": "01" * 16,
        "message-format": 0,
        "settled": False,
    }
    assert shown["payloadBytes"] == len(SECRET)
    assert shown["channel"] == 2
    assert SECRET.hex() not in json.dumps(shown)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (composites.SASL_INIT, [Symbol("PLAIN"), SECRET, "localhost"]),
        (composites.SASL_RESPONSE, [SECRET]),
        (composites.SASL_CHALLENGE, [SECRET]),
    ],
)
def test_what_sasl_carries_is_left_out(code: int, fields: list[Any]) -> None:
    _, shown = kept(SASL_HEADER + frame(0, composite(code, fields), SASL_FRAME))
    assert "(left out)" in shown["fields"].values()
    assert SECRET.decode() not in json.dumps(shown)
    assert SECRET.hex() not in json.dumps(shown)


def test_of_large_frames_the_head_is_kept() -> None:
    recent = RecentFrames()
    attach = composite(composites.ATTACH, ["link", UInt(0), True, None, None, "x" * 9000])
    recent.received.add(frame(0, TRANSFER + bytes(60_000)) + frame(0, attach) + EMPTY_FRAME, 0)
    assert [len(head) for _, _, head in recent.frames()] == [TRANSFER_BYTES_MAX, FRAME_BYTES_MAX, 8]
    transfer, cut, empty = map(described, recent.frames())
    assert transfer["payloadBytes"] == 60_000
    assert cut["fields"] == {"name": "link", "handle": 0, "role": "receiver"}
    assert cut["cut"]
    assert empty["frame"] == "empty"


@pytest.mark.parametrize("name_length", range(1900, 2060))
def test_what_was_not_kept_of_a_frame_is_said_wherever_it_was_cut(name_length: int) -> None:
    attach = composite(
        composites.ATTACH, ["x" * name_length, UInt(0), True, None, None, *[Symbol("y" * 300)] * 2]
    )
    (shown,) = kept(frame(0, attach))
    assert shown["frame"] == "attach"
    assert shown["cut"]


def test_a_frame_whose_body_is_elsewhere_shows_nothing_of_the_message() -> None:
    """The data offset names where the performative begins: here it is within the message."""
    hidden = b"\x00\xa1\x14the body of a messag\x45"
    data = frame(0, TRANSFER + bytes(-len(TRANSFER) % 4) + hidden)
    offset = (8 + len(TRANSFER) + -len(TRANSFER) % 4) // 4
    (shown,) = kept(data[:4] + bytes((offset,)) + data[5:])
    assert shown["frame"] == "unreadable"
    assert "body" not in json.dumps(shown)


def test_the_last_frames_are_kept() -> None:
    recent = RecentFrames()
    for at_ms in range(FRAMES_MAX):
        recent.received.add(EMPTY_FRAME, at_ms)
        recent.sent.add(EMPTY_FRAME, at_ms)
    frames = recent.frames()
    assert len(frames) == FRAMES_MAX
    assert frames[0][:2] == (FRAMES_MAX // 2, "in")
    assert frames[-1][:2] == (FRAMES_MAX - 1, "out")


def test_frames_of_one_read_share_its_time() -> None:
    recent = RecentFrames()
    recent.received.add(EMPTY_FRAME * 2000, 1)
    recent.received.add(EMPTY_FRAME * 400, 2)
    assert [at_ms for at_ms, _, _ in recent.frames()] == [1] * 100 + [2] * 400


STREAM = b"".join(
    (
        AMQP_HEADER,
        frame(0, composite(composites.OPEN, ["me"])),
        EMPTY_FRAME,
        frame(1, TRANSFER + bytes(5000)),
        frame(1, TRANSFER),
        frame(1, composite(composites.ATTACH, ["x" * 4000, UInt(0), True])),
        frame(1, composite(composites.DISPOSITION, [True, UInt(1), None, True, Described(0x24, [])])),
    )
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=40))
def test_it_does_not_matter_how_the_network_cuts_the_stream(cuts: list[int]) -> None:
    ends = sorted({*cuts, len(STREAM)})
    recent, whole = RecentFrames(), RecentFrames()
    for begin, end in zip([0, *ends], ends, strict=False):
        recent.sent.add(STREAM[begin:end], 0)
    whole.sent.add(STREAM, 0)
    assert recent.frames() == whole.frames()
    assert len(whole.frames()) == 7


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\x00\x00\x03\x02\x00\x00\x00" + EMPTY_FRAME,
        frame(0, b"\x00\x53\x77\x45"),
        frame(0, b"\x00\x53\x14\xc0\xff\x05"),
        frame(0, b"\x41"),
        frame(0, b"\x00\xa3\x70" + b"x" * 112 + b"\x45"),
        b"\x00\x00\x00\x0c\xff\x00\x00\x00\x00\x53\x10\x45",
    ],
)
def test_what_is_no_frame_is_shown_as_it_begins(stream: bytes) -> None:
    shown = kept(stream + bytes(FRAME_BYTES_MAX))
    assert shown[0]["frame"] in ("unreadable", "empty")
    assert len(json.dumps(shown[0])) < 1000


def test_nothing_that_a_peer_sends_fails() -> None:
    chance = random.Random(1)
    for _ in range(1000):
        stream = bytearray(STREAM)
        for _ in range(chance.randrange(1, 6)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
        kept(bytes(stream))
