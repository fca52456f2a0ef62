"""The load generator believes no broker: only `accepted`, once, for each message counts.

The broker here is a script that speaks just enough AMQP to say the wrong thing.
"""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.loadgen import compile_loadgen
from peeklock.amqp.messaging import Sections, scan

# The load generator is an optional part: a machine without a C compiler can do without.
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

USAGE, PROTOCOL, PEER_CLOSED, STALLED, OUTCOME = 1, 2, 3, 4, 5
ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26
NULL = b"\x40"


def frame(code: int, *fields: bytes, kind: int = 0) -> bytes:
    body = described(code, *fields)
    return struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body


def uint(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def flag(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def string(text: str) -> bytes:
    return bytes((0xA1, len(text))) + text.encode()


def source(session_id: str) -> bytes:
    """Encode a source whose filter says which session was given."""
    pair = b"\xa3\x1ccom.microsoft:session-filter" + string(session_id)
    return described(0x28, *7 * [NULL], bytes((0xC1, len(pair) + 1, 2)) + pair)


def described(code: int, *fields: bytes) -> bytes:
    items = b"".join(fields)
    return bytes((0, 0x53, code, 0xD0)) + struct.pack(">II", len(items) + 4, len(fields)) + items


def disposition(first: int, last: int, outcome: int, *, role: bool = True, settled: bool = True) -> bytes:
    state = bytes((0, 0x53, outcome, 0x45)) if outcome else NULL
    return frame(0x15, flag(role), uint(first), uint(last), flag(settled), state)


def credit_of(flow: bytes) -> tuple[int, int]:
    """Return delivery count and link credit of a flow's body; both below 256, the handle too."""
    fields = flow[6:]
    for _ in range(5):  # next-incoming-id, windows and next-outgoing-id, handle
        fields = fields[{0x43: 1, 0x52: 2, 0x70: 5}[fields[0]] :]
    numbers = []
    for _ in range(2):
        width = {0x43: 1, 0x52: 2}[fields[0]]
        numbers.append(fields[1] if width == 2 else 0)
        fields = fields[width:]
    assert fields[0] == 0x43, "nothing is available"
    return numbers[0], numbers[1]


class Peer:
    """The broker's side of one connection: reads frames, says what the script wants."""

    def __init__(self, connection: socket.socket) -> None:
        self.stream = connection.makefile("rwb", buffering=0)
        self.connection = connection

    def send(self, *frames: bytes) -> None:
        self.connection.sendall(b"".join(frames))

    def receive(self, code: int) -> bytes:
        """Read frames up to one with this performative, and return it; a close ends the script."""
        while True:
            head = self._exactly(8)
            if head.startswith(b"AMQP"):
                continue
            body = self._exactly(struct.unpack(">I", head[:4])[0] - 8)
            if body[2:3] == bytes((code,)):
                return body
            if body[2:3] == b"\x18":
                self.send(frame(0x18))
                self._gone()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.stream.read(size - len(data)) or self._gone()
        return data

    @staticmethod
    def _gone() -> bytes:
        raise ConnectionError

    def handshake(self, links: int) -> None:
        """Log the load generator in, and open, begin and attach as it asks."""
        self.send(b"AMQP\3\1\0\0", frame(0x40, b"\xa3\x09ANONYMOUS", kind=1))
        self.receive(0x41)
        self.send(frame(0x44, b"\x50\x00", kind=1), b"AMQP\0\1\0\0")
        self.send(frame(0x10, string("peer")), frame(0x11, b"\x60\x00\x00", uint(0), uint(5000), uint(5000)))
        self.attaches = [self.receive(0x12) for _ in range(links)]
        for handle, attach in enumerate(self.attaches):
            self.attached(attach, handle)

    def attached(self, attach: bytes, handle: int = 0, session_id: str | None = None) -> None:
        """Answer an attach."""
        name = attach[12 : 14 + attach[13]]
        termini = () if session_id is None else (NULL, NULL, source(session_id))
        self.send(frame(0x12, name, uint(handle), flag(False), *termini))

    def give_credit(self, credit: int) -> None:
        self.send(frame(0x13, uint(0), uint(5000), uint(0), uint(5000), uint(0), uint(0), uint(credit)))

    def drained(self, delivery_count: int) -> None:
        """Say that there is no more."""
        window = (uint(0), uint(5000), uint(0), uint(5000))
        self.send(frame(0x13, *window, uint(0), uint(delivery_count), uint(0), NULL, flag(True)))

    def transfer(self, number: int, handle: int = 0) -> bytes:
        tag = b"\xa0\x01" + bytes((number,))
        return frame(0x14, uint(handle), uint(number), tag, uint(0), flag(False))

    def message(self) -> Sections:
        """Take a transfer apart."""
        body = self.receive(0x14)
        return scan(body[5 + body[4] :])


Script = Callable[[Peer], None]


@contextmanager
def broker(*scripts: Script, links: tuple[int, ...] = (1,)) -> Iterator[int]:
    """Serve a connection by each script, of which so many links are attached first; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket, script: Script, links: int) -> None:
            with connection:
                peer = Peer(connection)
                try:
                    peer.handshake(links)
                    script(peer)
                    peer.receive(0x18)
                    peer.send(frame(0x18))
                except ConnectionError:
                    pass  # the load generator has left, which is what most scripts are for

        def accept() -> None:
            serving = []
            for script, count in zip(scripts, links, strict=True):
                connection, _ = listener.accept()
                serving.append(threading.Thread(target=serve, args=(connection, script, count)))
                serving[-1].start()
            for thread in serving:
                thread.join()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield int(listener.getsockname()[1])
        accepting.join()


def run(
    *scripts_and_options: Script | str, links: tuple[int, ...] = (1,)
) -> subprocess.CompletedProcess[str]:
    scripts = [one for one in scripts_and_options if not isinstance(one, str)]
    options = [one for one in scripts_and_options if isinstance(one, str)]
    with broker(*scripts, links=links) as port:
        command = [str(compile_loadgen()), "-p", str(port), "-j", "-T", "20", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_accepted_sends_are_reported_with_their_latencies() -> None:
    def accept_all(peer: Peer) -> None:
        peer.give_credit(3)
        for _ in range(3):
            peer.receive(0x14)
        peer.send(disposition(1, 2, ACCEPTED), disposition(0, 0, ACCEPTED))

    done = run(accept_all, "-n", "3", "-r")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["count"] == 3
    latency = said["latency_us"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


@pytest.mark.parametrize("outcome", [REJECTED, RELEASED, 0])
def test_an_outcome_other_than_accepted_ends_it(outcome: int) -> None:
    def refuse_second(peer: Peer) -> None:
        peer.give_credit(2)
        peer.receive(0x14)
        peer.send(disposition(0, 0, ACCEPTED), disposition(1, 1, outcome))
        peer.receive(0x18)

    done = run(refuse_second, "-n", "2")
    assert done.returncode == OUTCOME
    assert f"outcome 0x{outcome:02x}, not accepted" in done.stderr


def test_an_outcome_that_is_not_settled_ends_it() -> None:
    def leave_unsettled(peer: Peer) -> None:
        peer.give_credit(1)
        peer.receive(0x14)
        peer.send(disposition(0, 0, ACCEPTED, settled=False))
        peer.receive(0x18)

    assert run(leave_unsettled, "-n", "1").returncode == OUTCOME


def test_a_delivery_settled_twice_ends_it() -> None:
    def settle_twice(peer: Peer) -> None:
        peer.give_credit(2)
        peer.receive(0x14)
        peer.receive(0x14)
        peer.send(disposition(0, 0, ACCEPTED), disposition(0, 1, ACCEPTED))
        peer.receive(0x18)

    done = run(settle_twice, "-n", "2")
    assert done.returncode == PROTOCOL
    assert "delivery 0 settled twice" in done.stderr


def test_each_received_message_waits_for_the_answer_to_its_own_disposition() -> None:
    def deliver_two(peer: Peer) -> None:
        peer.receive(0x13)
        peer.send(peer.transfer(0), peer.transfer(1))
        for number in (0, 1):
            said = peer.receive(0x15)
            # role receiver, first, no last, settled false, accepted, no word on batchable: in a list8
            first = b"\x52\x01" if number else b"\x43"
            assert said[3:4] + said[6:] == b"\xc0\x41" + first + b"\x40\x42\x00\x53\x24\x45\x40"
        peer.send(disposition(0, 1, ACCEPTED, role=False))

    done = run(deliver_two, "-m", "recv", "-n", "2", "-i", "-2")
    assert (done.returncode, done.stderr) == (0, "")


def test_transfers_are_written_as_the_client_of_dotnet_writes_them() -> None:
    def check_heads(peer: Peer) -> None:
        peer.give_credit(2)
        for number in (0, 1):
            # handle, id, tag, format 0, settled null, more false, nothing, batchable true: in a list8
            head = b"\x43" + (b"\x52\x01" if number else b"\x43") + b"\xa0\x04" + bytes((number + 1, 0, 0, 0))
            head += b"\x43\x40\x42" + 4 * NULL + b"\x41"
            body = peer.receive(0x14)
            assert body[3:].startswith(bytes((0xC0, len(head) + 1, 11)) + head)
            peer.send(disposition(number, number, ACCEPTED))

    assert run(check_heads, "-n", "2").returncode == 0


def test_a_handler_asks_for_one_message_and_waits_for_the_answer_before_it_asks_again() -> None:
    def hand_two_to_two(peer: Peer) -> None:
        assert [credit_of(peer.receive(0x13)) for _ in range(2)] == [(0, 1), (0, 2)]
        peer.send(peer.transfer(0), peer.transfer(1))
        for _ in range(2):
            peer.receive(0x15)
        for number in (1, 0):  # each answer lets one ask, while the other waits for its own
            peer.send(disposition(number, number, ACCEPTED, role=False))
            if number:
                assert credit_of(peer.receive(0x13)) == (2, 1)
        peer.send(peer.transfer(2))  # the third and last
        assert peer.receive(0x15)[6:].startswith(b"\x41\x52\x02")
        peer.send(disposition(2, 2, ACCEPTED, role=False))

    done = run(hand_two_to_two, "-m", "recv", "-n", "3", "-H", "2", "-2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["latency_us"]["p50"] > 0


@pytest.mark.parametrize("outcome", [REJECTED, 0])
def test_a_settlement_that_the_broker_does_not_accept_ends_it(outcome: int) -> None:
    def refuse_settlement(peer: Peer) -> None:
        peer.receive(0x13)
        peer.send(peer.transfer(0))
        peer.receive(0x15)
        peer.send(disposition(0, 0, outcome, role=False))
        peer.receive(0x18)

    assert run(refuse_settlement, "-m", "recv", "-n", "1", "-i", "-2").returncode == OUTCOME


def test_more_deliveries_than_asked_for_end_it() -> None:
    def deliver_too_much(peer: Peer) -> None:
        peer.receive(0x13)
        peer.send(peer.transfer(0), peer.transfer(1))
        peer.receive(0x18)

    done = run(deliver_too_much, "-m", "recv", "-n", "1", "-2")
    assert (done.returncode, "more deliveries" in done.stderr) == (PROTOCOL, True)


def test_a_closed_link_ends_it_with_what_the_broker_said() -> None:
    def detach(peer: Peer) -> None:
        peer.send(frame(0x16, uint(0), flag(True), string("no such queue")))
        peer.receive(0x18)

    done = run(detach, "-n", "1")
    assert done.returncode == PEER_CLOSED
    assert "no such queue" in done.stderr


def test_no_progress_ends_it() -> None:
    def give_nothing(peer: Peer) -> None:
        peer.receive(0x18)

    assert run(give_nothing, "-n", "1", "-T", "0.2").returncode == STALLED


def test_an_offered_rate_is_kept() -> None:
    def accept_each(peer: Peer) -> None:
        peer.give_credit(1000)
        for number in range(20):
            peer.receive(0x14)
            peer.send(disposition(number, number, ACCEPTED))

    done = run(accept_each, "-n", "20", "-o", "100")
    said = json.loads(done.stdout)
    assert said["seconds"] >= 0.19  # 20 messages, one each 10 ms, the first at once


def test_offering_ends_with_its_input() -> None:
    taken = 0

    def accept_each(peer: Peer) -> None:
        nonlocal taken
        peer.give_credit(100_000)
        for number in itertools.count():
            peer.receive(0x14)  # until the connection is closed
            peer.send(disposition(number, number, ACCEPTED))
            taken += 1

    with broker(accept_each) as port:
        command = [str(compile_loadgen()), "-p", str(port), "-j", "-n", "100000", "-o", "1000", "-e"]
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    begun, said = done.stdout.splitlines()
    assert begun == "offering"
    assert json.loads(said)["count"] == taken < 100_000


def test_refused_sends_are_counted_on_demand() -> None:
    def refuse_second(peer: Peer) -> None:
        peer.give_credit(3)
        for _ in range(3):
            peer.receive(0x14)
        peer.send(disposition(0, 0, ACCEPTED), disposition(1, 2, REJECTED))

    done = run(refuse_second, "-n", "3", "-f")
    assert done.returncode == 0
    assert json.loads(done.stdout)["refused"] == 2


def test_no_two_messages_have_the_same_id() -> None:
    ids = []

    def note_ids(peer: Peer) -> None:
        peer.give_credit(2)
        for number in range(2):
            ids.append(peer.message().decode_properties().message_id)
            peer.send(disposition(number, number, ACCEPTED))

    for _ in range(2):
        # A connection of two, then another run.
        assert run(note_ids, note_ids, "-n", "4", "-r", "-S", "2", links=(1, 1)).returncode == 0
    assert len(set(ids)) == len(ids) == 8


def test_messages_belong_to_sessions_in_turn() -> None:
    def check_sessions(peer: Peer) -> None:
        peer.give_credit(3)
        for number in range(3):
            message = peer.message()
            assert message.decode_properties().group_id == f"session-{number % 2:08x}"
            annotations = message.decode_message_annotations()
            assert annotations["x-opt-partition-key"] == f"session-{number % 2:08x}"
            peer.send(disposition(number, number, ACCEPTED))

    assert run(check_sessions, "-n", "3", "-g", "2").returncode == 0


def test_messages_belong_to_tenants_in_turn() -> None:
    def check_tenants(peer: Peer) -> None:
        peer.give_credit(302)
        for number in range(302):
            properties = peer.message().decode_application_properties()
            assert properties == {"kind": "order", "tenant": number % 300}
            peer.send(disposition(number, number, ACCEPTED))

    assert run(check_tenants, "-n", "302", "-t", "300").returncode == 0


def test_each_named_session_is_received_from_over_a_link_of_its_own() -> None:
    def deliver_two_and_one(peer: Peer) -> None:
        for number, attach in enumerate(peer.attaches):
            assert b"\xa3\x1ccom.microsoft:session-filter" + string(f"session-{number:08x}") in attach
        for credit in (2, 1):  # of three messages in turn
            assert credit_of(peer.receive(0x13)) == (0, credit)
        peer.send(peer.transfer(0, 1), peer.transfer(1, 0), peer.transfer(2, 0))

    done = run(deliver_two_and_one, "-m", "recv", "-n", "3", "-g", "2", "-G", links=(2,))
    assert (done.returncode, done.stderr) == (0, "")


ONE, OTHER = "session-00000000", "session-00000001"


def accept_fills(peer: Peer) -> None:
    """Take what the next sessions are filled with."""
    peer.give_credit(100)
    for number in itertools.count():
        peer.receive(0x14)
        peer.send(disposition(number, number, ACCEPTED))


def give(peer: Peer, session_id: str, number: int) -> None:
    """Hand out a session with one message, delivery `number`, until its receiver has left it."""
    attach = peer.receive(0x12)
    assert attach.count(b"\xa3\x1ccom.microsoft:session-filter" + NULL) == 1
    peer.attached(attach, session_id=session_id)
    assert peer.receive(0x13).endswith(flag(True) + flag(False) + NULL), "the receiver does not drain"
    peer.send(peer.transfer(number))
    peer.drained(1)
    peer.receive(0x15)
    peer.send(disposition(number, number, ACCEPTED, role=False))
    peer.receive(0x16)
    peer.send(frame(0x16, uint(0), flag(True)))


def next_sessions(receiver: Script, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the hand-out of two sessions to one receiver."""
    both = ("-m", "next", "-g", "2", "-n", "5", "-R", "1", "-i", "-2", *options)
    return run(accept_fills, receiver, *both, links=(1, 0))


def test_sessions_are_filled_again_and_handed_out_until_all_is_received() -> None:
    def hand_out(peer: Peer) -> None:
        for number, session_id in enumerate((ONE, OTHER, ONE, OTHER, ONE)):
            give(peer, session_id, number)

    done = next_sessions(hand_out)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["handed_out"] == 5
    assert said["times_handed_out"] == {"min": 2, "max": 3}
    assert 0 < said["wait_s"]["p50"] <= said["wait_s"]["max"]
    assert said["steady_rate"] > 0
    assert said["drain_rate"] > 0


def test_a_session_without_messages_that_is_handed_out_ends_it() -> None:
    def hand_out_emptied(peer: Peer) -> None:
        for number, session_id in enumerate((ONE, ONE)):
            give(peer, session_id, number)

    done = next_sessions(hand_out_emptied, "-n", "2")
    assert done.returncode == PROTOCOL
    assert "although it is empty" in done.stderr


def test_a_session_that_is_handed_out_and_gives_nothing_ends_it() -> None:
    def give_nothing(peer: Peer) -> None:
        peer.attached(peer.receive(0x12), session_id=ONE)
        peer.drained(1000)
        peer.receive(0x18)

    done = next_sessions(give_nothing)
    assert done.returncode == PROTOCOL
    assert "gave nothing" in done.stderr


def test_a_session_that_is_handed_out_twice_ends_it() -> None:
    def hand_out_twice(peer: Peer) -> None:
        for handle in range(2):
            peer.attached(peer.receive(0x12), handle, session_id=ONE)
        peer.receive(0x18)

    done = next_sessions(hand_out_twice, "-l", "2")
    assert done.returncode == PROTOCOL
    assert "held twice" in done.stderr


def test_a_session_that_nobody_filled_ends_it() -> None:
    def hand_out_strange(peer: Peer) -> None:
        peer.attached(peer.receive(0x12), session_id="session-00000002")
        peer.receive(0x18)

    done = next_sessions(hand_out_strange)
    assert done.returncode == PROTOCOL
    assert "none of ours" in done.stderr


def test_idle_connections_are_held_until_its_input_ends() -> None:
    with broker(lambda peer: None) as port:
        command = [str(compile_loadgen()), "-p", str(port), "-I", "1"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "holding 1 connections\n"
            assert process.poll() is None
            process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        ["-m", "dance"],
        ["-n", "0"],
        ["-z"],
        ["stray"],
        ["-m", "next"],
        ["-m", "next", "-g", "10", "-k", "3", "-n", "29"],
        ["-m", "recv", "-g", "1", "-G", "-R", "2"],
        ["-m", "recv", "-e"],
        ["-m", "recv", "-f"],
        ["-m", "recv", "-H", "1", "-x"],
        ["-m", "send", "-H", "1", "-2"],
    ],
)
def test_bad_options_show_the_usage(options: list[str]) -> None:
    done = subprocess.run([str(compile_loadgen()), *options], capture_output=True, text=True, check=False)
    assert done.returncode == USAGE
    assert "usage: loadgen" in done.stderr
