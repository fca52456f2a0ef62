"""Damaged transactions against a whole broker: no exception escapes, indexes agree, other connections are
served."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import DispositionReceived
from peeklock.amqp.performatives import ACCEPTED, Declared, TransactionalState
from peeklock.testing.inprocess import InProcessBroker
from tests.fuzz.test_amqp_garbage import mutated
from tests.gateway.harness import LiveHarness
from tests.gateway.live import message, send

few = settings(deadline=None, max_examples=150)


def broker_with_a_message() -> InProcessBroker:
    broker = InProcessBroker()
    for name in ("orders", "audit"):
        broker.create_queue(name)
    send(LiveHarness(broker), message("in"))
    return broker


class Recorder(LiveHarness):
    """A harness that keeps its client's output."""

    written = b""

    def pump(self) -> None:
        data = self.client.data_to_send()
        while data:
            self.written += data
            self._wire.write(data)
            self.events += self.client.receive(self._wire.read(), self.broker.clock.now_ms)
            data = self.client.data_to_send()


@cache
def recorded() -> tuple[bytes, bytes]:
    """Return what a client writes until it has declared a transaction, and what it writes then.

    The broker's tokens come from a seed: against another broker the same bytes mean the same.
    """
    rig = Recorder(broker_with_a_message())
    control = rig.controller()
    rig.listen(credit=1)
    sender = rig.sender("audit")
    [delivery] = rig.deliveries()
    rig.transfer(control, encode_coordination(Declare()))
    declared = rig.take_event(DispositionReceived).state
    assert isinstance(declared, Declared)
    before, rig.written = rig.written, b""
    rig.transfer(sender, message("out"), state=TransactionalState(declared.txn_id))
    rig.settle(delivery.delivery_id, delivery.delivery_id, TransactionalState(declared.txn_id, ACCEPTED))
    rig.transfer(control, encode_coordination(Discharge(declared.txn_id)))
    # Undamaged, it is done.
    assert [rig.broker.queue(name).active_count for name in ("orders", "audit")] == [0, 1]
    return before, rig.written


@few
@given(st.data())
def test_a_damaged_transaction_harms_no_other_connection(data: st.DataObject) -> None:
    """Req: F-03, R-05."""
    before, after = recorded()
    damaged = data.draw(mutated(after))
    broker = broker_with_a_message()
    wire = broker.connect()
    wire.write(before)
    wire.write(damaged)
    wire.read()
    wire.end()
    broker.namespace.check(broker.clock.now_ms)
    send(LiveHarness(broker), message("next"))


@few
@given(st.data())
def test_a_damaged_beginning_of_one_harms_no_other_connection(data: st.DataObject) -> None:
    """Req: R-05."""
    before, after = recorded()
    broker = broker_with_a_message()
    wire = broker.connect()
    wire.write(data.draw(mutated(before)))
    wire.write(after)
    wire.end()
    broker.namespace.check(broker.clock.now_ms)
    send(LiveHarness(broker), message("next"))
