"""The handlers of a namespace, and the table of their commands.

Each handler has a function beside it that answers its refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers.attachments import Attachments
from peeklock.broker.handlers.bodies import BodyOperations
from peeklock.broker.handlers.by_number import ByNumber
from peeklock.broker.handlers.cursor_operations import CursorOperations
from peeklock.broker.handlers.definition_operations import DefinitionOperations
from peeklock.broker.handlers.deletions import Deletions
from peeklock.broker.handlers.enlisting import Enlisting
from peeklock.broker.handlers.operations import Operations
from peeklock.broker.handlers.purging import Purging
from peeklock.broker.handlers.resetting import Resetting
from peeklock.broker.handlers.searching import Searching
from peeklock.broker.handlers.session_operations import SessionOperations
from peeklock.broker.handlers.transactions import Transactions
from peeklock.broker.queue.graces import Graces
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.addresses import ReplyTo
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.broker.vocabulary.extension_commands import (
    DeleteMatching,
    ReplaceSessionState,
    Reset,
    SearchMessages,
    SettleByNumber,
    ShiftScheduled,
)

Handler = Callable[[Any, Outcome], None]
Refusal = Callable[[Any, ServiceBusError], "Effect | None"]


class _Request(Protocol):
    """A command that is answered."""

    reply_to: ReplyTo


class _Settlement(Protocol):
    """A command that is answered if its sender asks for it."""

    reply_to: ReplyTo | None


class Handlers:
    """All handlers of one namespace."""

    def __init__(
        self, entities: Entities, shared: Shared, slice_items: int, grace_ms: int | None, *, delete_lock: bool
    ) -> None:
        """See `Namespace`."""
        self.graces = Graces(shared, grace_ms)
        self.attachments = Attachments(entities, shared, self.graces)
        self.deletions = Deletions(entities, shared, self.attachments, slice_items, delete_lock=delete_lock)
        self.definitions = DefinitionOperations(entities, shared, self.attachments, self.deletions.idle)
        self.operations = Operations(entities, shared, slice_items)
        self.sessions = SessionOperations(entities, shared)
        self.transactions = Transactions(
            entities.limits, Enlisting(entities, self.operations, shared), shared
        )
        self.cursors = CursorOperations(entities)
        self.purging = Purging(entities, shared)
        self.searching = Searching(entities, shared)
        self.bodies = BodyOperations(entities, shared, self.operations, self.sessions, self.searching)
        self.resetting = Resetting(entities, self.transactions)
        self._entities = entities
        self._shared = shared
        self.table = self._table()
        """The handler of each command, and how its refusal is answered."""

    def _table(self) -> dict[type, tuple[Handler, Refusal]]:
        operations, sessions, cursors = self.operations, self.sessions, self.cursors
        return {
            ask.OpenSender: (self.attachments.open_sender, _refuse_link),
            ask.OpenReceiver: (self.attachments.open_receiver, _refuse_link),
            ask.OpenCoordinator: (self.transactions.open_coordinator, _refuse_link),
            ask.CloseLink: (self._close_link, cannot_fail),
            ask.SetCredit: (self.attachments.set_credit, cannot_fail),
            ask.DropConnection: (self._drop_connection, cannot_fail),
            ask.Declare: (self.transactions.declare, _reject),
            ask.Discharge: (self.transactions.discharge, _reject),
            ask.Enlist: (self.transactions.enlist, self._refuse_enlisted),
            ask.Send: (operations.send, operations.reject),
            ask.SendBatch: (operations.send_batch, operations.reject),
            ask.SendTo: (operations.send_to, _reject),
            ask.Complete: (operations.complete, _fail_settlement),
            ask.Abandon: (operations.settle, _fail_settlement),
            ask.Defer: (operations.settle, _fail_settlement),
            ask.DeadLetter: (operations.settle, _fail_settlement),
            ask.Release: (operations.release, _fail_settlement),
            ask.RenewLocks: (operations.renew_locks, _fail),
            ask.Peek: (operations.peek, _fail),
            ask.Schedule: (operations.schedule, _fail),
            ask.CancelScheduled: (operations.cancel_scheduled, _fail),
            ask.ReceiveDeferred: (operations.receive_deferred, _fail),
            ask.UpdateDisposition: (operations.update_disposition, _fail),
            ask.DeleteMessages: (operations.delete_messages, _fail),
            ask.PurgeMessages: (self.purging.purge, _fail),
            SettleByNumber: (ByNumber(self._entities).settle, _fail),
            ShiftScheduled: (operations.shift_scheduled, _fail),
            SearchMessages: (self.searching.begin, _fail),
            DeleteMatching: (self.searching.begin, _fail),
            Reset: (self.resetting.reset, _fail),
            ask.Fetched: (self.bodies.fetched, cannot_fail),
            ask.LoseBodies: (self.bodies.lose_bodies, cannot_fail),
            ask.RenewSessionLock: (sessions.renew_session, _fail),
            ask.GetSessionState: (sessions.get_session_state, _fail),
            ReplaceSessionState: (sessions.replace_session_state, _fail),
            ask.ShowSession: (sessions.show_session, _fail),
            ask.SetSessionState: (sessions.set_session_state, _fail),
            ask.ListSessions: (sessions.list_sessions, _fail),
            ask.TakeCursor: (cursors.take, _fail),
            ask.ClaimMessages: (cursors.claim, _fail),
            ask.ReadClaim: (cursors.read, _fail),
            ask.CommitClaims: (cursors.commit, _fail),
            ask.ReleaseCursor: (cursors.release, _fail),
            ask.ListCursors: (cursors.list_cursors, _fail),
            **self._definitions_table(),
            ask.LimitSending: (operations.limit_sending, cannot_fail),
            ask.ClockStepped: (self._clock_stepped, cannot_fail),
            ask.AcceptClock: (self._accept_clock, cannot_fail),
            ask.CountDroppedSend: (operations.count_dropped_send, cannot_fail),
        }

    def _definitions_table(self) -> dict[type, tuple[Handler, Refusal]]:
        return {
            ask.LookUp: (self.definitions.look_up, _fail),
            ask.CreateEntity: (self.definitions.create_entity, _fail),
            ask.UpdateEntity: (self.definitions.update_entity, _fail),
            ask.DeleteEntity: (self.deletions.ask, _fail),
            ask.ListEntities: (self.definitions.list_entities, _fail),
            ask.AddRule: (self.definitions.add_rule, _fail),
            ask.UpdateRule: (self.definitions.update_rule, _fail),
            ask.RemoveRule: (self.definitions.remove_rule, _fail),
            ask.FindRule: (self.definitions.find_rule, _fail),
            ask.ListRules: (self.definitions.list_rules, _fail),
        }

    def _close_link(self, command: ask.CloseLink, out: Outcome) -> None:
        self.transactions.close_coordinator(command.link, out)
        self.attachments.close_link(command, out)

    def _drop_connection(self, command: ask.DropConnection, out: Outcome) -> None:
        self.transactions.drop_connection(command.connection_id, out)
        self.attachments.drop_connection(command, out)

    def _refuse_enlisted(self, command: ask.Enlist, error: ServiceBusError) -> Effect | None:
        """Refuse a command of a transaction as it would be refused without one."""
        return self.table[type(command.command)][1](command.command, error)

    def _clock_stepped(self, command: ask.ClockStepped, out: Outcome) -> None:
        self._shared.wall.step(command.delta_ms)
        self._follow_clock(command.delta_ms, out)

    def _accept_clock(self, command: ask.AcceptClock, out: Outcome) -> None:
        if self._shared.wall.is_doubted:
            self._shared.wall.accept()
            self._follow_clock(0, out)

    def _follow_clock(self, step_ms: int, out: Outcome) -> None:
        """Set the timers of all queues by the new wall clock: 2 us a queue."""
        out.clock_stepped(step_ms)
        for queue in self._entities.queues.values():
            queue.set_timer()


def _refuse_link(
    command: ask.OpenSender | ask.OpenReceiver | ask.OpenCoordinator, error: ServiceBusError
) -> Effect:
    return do.LinkRefused(command.link, error)


def _reject(command: ask.Declare | ask.Discharge | ask.SendTo, error: ServiceBusError) -> Effect:
    return do.Rejected(command.reply_to, error)


def _fail_settlement(command: _Settlement, error: ServiceBusError) -> Effect | None:
    return None if command.reply_to is None else do.SettlementFailed(command.reply_to, error)


def _fail(command: _Request, error: ServiceBusError) -> Effect:
    return do.Failed(command.reply_to, error)


def cannot_fail(command: Command, error: ServiceBusError) -> NoReturn:
    raise AssertionError(f"{type(command).__name__} cannot be refused: {error}") from error
