"""The frames before an error: when a gateway hands them over, and with which tracking id."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.frame_text import described
from peeklock.amqp.frames import frame
from peeklock.broker.vocabulary.commands import DropConnection
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.traced import FrameTrace, TracedGateway
from tests.gateway.harness import CONNECTION_ID, KEY, Harness, message_bytes


class Traced(Harness):
    """A harness with a gateway that keeps frames."""

    gateway: TracedGateway

    def make_gateway(self, limits: GatewayLimits | None) -> TracedGateway:
        self.traces: list[FrameTrace] = []
        self.defects: list[Exception] = []
        return TracedGateway(
            CONNECTION_ID,
            clock=lambda: self.clock.now_ms,
            on_error=self.traces.append,
            peer=lambda: "10.0.0.7:4711",
            namespaces=OneNamespace(self.authority),
            tracking=self._track,
            log=lambda event, fields: self.logged.append((event, fields)),
            now_ms=self.clock.now_ms,
            limits=limits,
            on_defect=lambda defect, tracking_id: self.defects.append(defect),
        )

    def end(self) -> FrameTrace:
        """End the stream, and return what was handed over."""
        self.gateway.eof(self.clock.now_ms)
        self.gateway.forget()
        (trace,) = self.traces
        return trace


def names(trace: FrameTrace) -> list[tuple[str, str]]:
    return [(shown["direction"], shown["frame"]) for shown in map(described, trace.frames)]


def test_a_client_that_closes_with_an_error() -> None:
    rig = Traced()
    rig.client.close(AmqpError("amqp:internal-error", "I am lost. TrackingId:../../etc/passwd_G1"))
    rig.pump()
    trace = rig.end()
    assert (trace.by_client, trace.condition) == (True, "amqp:internal-error")
    assert trace.text.startswith("I am lost.")
    assert trace.tracking_id.endswith(f"_G{CONNECTION_ID}")
    assert "/" not in trace.tracking_id, "a client has no say in the name of a file"
    assert (trace.peer, trace.client.container_id) == ("10.0.0.7:4711", "test")
    assert names(trace)[:3] == [("in", "header"), ("out", "header"), ("out", "sasl-mechanisms")]
    assert names(trace)[-2:] == [("in", "close"), ("out", "close")]


def test_a_broken_frame_of_the_client_is_in_it() -> None:
    rig = Traced()
    rig.gateway.receive(frame(0, b"\x00\x53\x14\xc0\xff\x05"), rig.clock.now_ms)
    rig.gateway.data_to_send()
    trace = rig.end()
    assert (trace.by_client, trace.condition) == (False, "amqp:decode-error")
    assert names(trace)[-2:] == [("in", "unreadable"), ("out", "close")]


def test_a_wrong_key_has_the_tracking_id_of_the_log() -> None:
    rig = Traced(response=b"\0RootManageSharedAccessKey\0wrong-key", opened=False)
    trace = rig.end()
    (logged,) = [fields for event, fields in rig.logged if event == "refused"]
    assert trace.tracking_id == logged["tracking_id"]
    assert trace.condition == "amqp:unauthorized-access"
    assert names(trace)[-1] == ("out", "sasl-outcome")
    assert "wrong-key" not in json.dumps([described(each) for each in trace.frames])


def test_a_client_without_a_token_has_the_tracking_id_of_its_close() -> None:
    rig = Traced(mechanism="ANONYMOUS", limits=GatewayLimits(claim_wait_ms=1000))
    rig.clock.advance(1001)
    rig.gateway.tick(rig.clock.now_ms)
    rig.pump()
    trace = rig.end()
    assert trace.condition == "amqp:connection:forced"
    assert f"TrackingId:{trace.tracking_id}," in trace.text


def test_a_defect_of_ours_has_the_frames_that_led_to_it() -> None:
    rig = Traced()
    handle = rig.sender()
    vars(rig.gateway)["_links"] = None  # what a defect may leave
    rig.client.send(rig.channel, handle, b"t", message_bytes())
    rig.pump()
    trace = rig.end()
    assert rig.defects
    assert trace.condition == "amqp:internal-error"
    assert f"TrackingId:{trace.tracking_id}" in trace.text
    assert names(trace)[-3:] == [("in", "transfer"), ("out", "close"), ("in", "close")]


@pytest.mark.parametrize("how", ["close", "end of the stream", "shutdown", "session ended"])
def test_other_ends_leave_nothing(how: str) -> None:
    rig = Traced()
    if how == "close":
        rig.client.close()
    elif how == "shutdown":
        rig.gateway.shutdown(rig.clock.now_ms)
    elif how == "session ended":
        rig.client.end(rig.channel)
    rig.pump()
    rig.gateway.eof(rig.clock.now_ms)
    rig.gateway.forget()
    assert rig.traces == []


@pytest.mark.parametrize("where", ["received", "sent", "frames"])
def test_a_defect_of_the_recording_ends_this_connection_alone(where: str) -> None:
    rig = Traced()
    broken = SimpleNamespace(received=rig.gateway._recent.received, sent=rig.gateway._recent.sent)
    vars(broken)[where] = None
    vars(rig.gateway)["_recent"] = broken
    rig.client.close(AmqpError("amqp:internal-error", "I am lost."))
    rig.pump()
    rig.gateway.eof(rig.clock.now_ms)
    rig.gateway.forget()
    assert rig.defects


def test_what_passes_is_as_without() -> None:
    rig, plain = Traced(), Harness()
    for each in (rig, plain):
        handle = each.sender()
        each.client.send(each.channel, handle, b"t", message_bytes(KEY.encode()))
        each.pump()
        each.commands += each.gateway.eof(each.clock.now_ms)
    assert [type(command) for command in rig.commands] == [type(command) for command in plain.commands]
    assert type(rig.commands[-1]) is DropConnection
