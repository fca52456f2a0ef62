"""The links of one connection by handle and by number: each gets its events and effects here.

The broker knows a link by a `LinkId`, whose number is never used again on this connection: a handle may
have a new link while effects for the old one are still under way. Source: wire contract 1.7, 2.1-2.3,
2.9; requirement L-13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from peeklock.amqp.events import (
    DeliveryOversized,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionEnded,
)
from peeklock.amqp.types import RECEIVER
from peeklock.auth import AuthorizationError
from peeklock.broker.vocabulary import commands, effects
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.errors import ServiceBusError, SessionCannotBeLocked, SessionWaitTimedOut
from peeklock.gateway.address import shown
from peeklock.gateway.answers import Answers
from peeklock.gateway.bounds import STRANGER_CBS_PAIRS_MAX, STRANGER_COORDINATORS_MAX
from peeklock.gateway.choice import Choice
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Backlog, Context, Output
from peeklock.gateway.errors import GatewayError, TooManyLinks
from peeklock.gateway.links.attach import (
    RIGHTS,
    AttachRequest,
    LinkKind,
    asked_for,
    check_possible,
    claimed_paths,
    read_attach,
)
from peeklock.gateway.links.coordinator import CoordinatorLink
from peeklock.gateway.links.incoming_link import IncomingLink
from peeklock.gateway.links.receiver_endpoint import ReceiverEndpoint, Unsettled
from peeklock.gateway.links.sender_endpoint import SenderEndpoint
from peeklock.gateway.links.settlement import settle
from peeklock.gateway.nodes.cbs import Refused, TokenNode
from peeklock.gateway.nodes.management import ManagementNode
from peeklock.gateway.nodes.node_links import RequestNodes
from peeklock.gateway.nodes.requests import ReplyLink, ReplyLinks, RequestLink
from peeklock.gateway.transactions import Transactions

_CLOSED_RECEIVERS_MAX: Final = 256
"""Receivers remembered after their end. Our choice: their last deliveries come within a batch or two."""

BrokerLink = SenderEndpoint | ReceiverEndpoint | CoordinatorLink
"""Links that the broker knows; the others exist only here."""

AnyLink = BrokerLink | RequestLink | ReplyLink

Handlers = dict[type, Callable[[Any, int], None]]
"""Event or effect -> what takes it, with now_ms."""


class LinkTable:
    """See the module."""

    def __init__(
        self,
        context: Context,
        claims: Claims,
        backlog: Backlog,
        output: Output,
        transactions: Transactions,
        answers: Answers,
    ) -> None:
        self._context = context
        self._connection = context.connection
        self._claims = claims
        self._backlog = backlog
        self._output = output
        self._transactions = transactions
        self._answers = answers
        self._links: dict[tuple[int, int], AnyLink] = {}
        """By channel and handle: links that are open, or that the client may send on already."""
        self._by_number: dict[int, BrokerLink] = {}
        self._pending: dict[int, BrokerLink] = {}
        """By number: links that wait for the broker's answer, perhaps until a session is free."""
        self._unsettled: dict[int, Unsettled] = {}
        """Unsettled deliveries by channel."""
        self.starved: set[int] = set()
        """Numbers of receivers that may need a further allowance of bytes: after each delivery, each flow,
        and when bodies have come. A link that is missing here when bytes are due would stall."""
        self._closed_receivers: dict[int, int] = {}
        """Number of a receiver that is gone -> the queue in which it locked messages: for deliveries that
        were under way."""
        self._sessions: dict[str, tuple[str, str]] = {}
        """Name of a receiver that holds a message session -> path of its entity, and session id."""
        self.replies = ReplyLinks(context, claims)
        management = ManagementNode(
            context, claims, backlog, output, transactions, answers, self.replies, self._sessions
        )
        self._nodes = RequestNodes(
            context,
            backlog,
            transactions,
            answers,
            self.replies,
            management,
            accepted=self._links.__setitem__,
            refused=self._refuse,
            detach=self._end,
        )
        self._last_number = 0
        self.on_event = self._event_handlers()
        self.on_effect = self._effect_handlers()

    def _event_handlers(self) -> Handlers:
        return {
            DeliveryReceived: self._on_delivery,
            DispositionReceived: self._on_disposition,
            LinkFlow: self._on_flow,
            DeliveryOversized: self._on_oversized,
            LinkAttached: self.attached,
            LinkDetached: self._on_detached,
            SessionEnded: self._on_session_ended,
        }

    def _effect_handlers(self) -> Handlers:
        return {
            effects.Accepted: self._accepted,
            effects.Deliver: self._deliver,
            effects.Settled: self._settled,
            effects.Declared: self._declared,
            effects.Enlisted: self._enlisted,
            effects.Rejected: self._rejected,
            effects.SettlementFailed: self._settlement_failed,
            effects.Drained: self._drained,
            effects.SenderOpened: self._opened,
            effects.ReceiverOpened: self._opened,
            effects.CoordinatorOpened: self._opened,
            effects.LinkRefused: self._link_refused,
            effects.DetachLink: self._detach_link,
            effects.SessionLockLapsed: self._session_lapsed,
            effects.TransactionEnded: self._transaction_ended,
        }

    @property
    def links(self) -> list[AnyLink]:
        """The links that are open, or being opened."""
        return list(self._links.values())

    def allow_bytes(self) -> None:
        """Allow receivers further bytes, as far as the connection's output is free."""
        if self._output.pending_bytes >= self._context.limits.output_bytes_max:
            return
        still_starved = set()
        for number in sorted(self.starved):
            link = self._by_number.get(number)
            if isinstance(link, ReceiverEndpoint) and not link.allow_bytes():
                still_starved.add(number)
        self.starved = still_starved

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that deliveries wait for."""
        return {row for link in self._waiting_links() for row in link.body_rows_wanted()}

    def bodies_arrived(self) -> None:
        """Try again what waited for a body."""
        for link in self._waiting_links():
            link.bodies_arrived()
            self.starved.add(link.number)

    def _waiting_links(self) -> list[ReceiverEndpoint]:
        found = [self._by_number[number] for number in sorted(self._output.waiting_links)]
        return [link for link in found if isinstance(link, ReceiverEndpoint)]

    def end(self, unsent: Iterable[tuple[int, int]] = ()) -> list[tuple[int, LockToken]]:
        """Forget all: the connection is over.

        Args:
            unsent: channel and id of deliveries of which nothing was written.

        Returns:
            Queue id and lock token of messages that were locked for the client and never sent to it. What is
            still under way is released when it comes.
        """
        undelivered: list[tuple[int, LockToken]] = []
        for channel, delivery_id in unsent:
            link = self._unsettled.get(channel, Unsettled()).get(delivery_id)
            if link is not None and link.locks_in is not None:
                undelivered.append((link.locks_in, link.token(delivery_id)))
        for ended in [*self._by_number.values(), *self._pending.values()]:
            if isinstance(ended, ReceiverEndpoint):
                undelivered += ended.take_undelivered()
            self._drop(ended)
        self._links.clear()
        self._by_number.clear()
        self._pending.clear()
        self._unsettled.clear()
        self._transactions.open.clear()
        self.starved.clear()
        self._output.waiting_links.clear()
        self.replies.forget_all()
        return undelivered

    def forget(self) -> None:
        """Break the reference cycles; see `Gateway.forget`."""
        self.on_event.clear()
        self.on_effect.clear()
        self._nodes.forget_all()

    def accept_tokens(self, choice: Choice, refused: Refused) -> None:
        """Serve `$cbs`, whose first token may choose the namespace."""
        self._nodes.tokens = TokenNode(
            self._context,
            self._claims,
            self._answers,
            self.replies,
            choice,
            refused,
            self.detach_unauthorized,
        )

    # Sessions and links

    def _on_session_ended(self, event: SessionEnded, now_ms: int) -> None:
        self._unsettled.pop(event.channel, None)
        self._transactions.session_ended(event.channel)

    def attached(self, event: LinkAttached, now_ms: int) -> None:
        """Open the link that a client asks for, or refuse it."""
        try:
            asked = read_attach(event, now_ms)
            self._check_rights(asked, now_ms)
            check_possible(asked)
            if asked.kind is LinkKind.RECEIVE:
                self._transactions.require_via(event.channel, asked.node.address)
            self._check_stranger(asked)
        except (ServiceBusError, GatewayError, AuthorizationError) as error:
            self._refuse(event, asked_for(event), error, now_ms)
            return
        if asked.kind in (LinkKind.REQUEST, LinkKind.REPLY):
            self._nodes.attach(event, asked)
        else:
            self._open(event, asked)

    def _check_rights(self, asked: AttachRequest, now_ms: int) -> None:
        if asked.kind is LinkKind.COORDINATE:
            return  # Java attaches it, and even declares, before its first claim; what it enlists needs one
        host_name = self._context.reporter.host_name
        for path in claimed_paths(asked.node, asked.destination):
            self._claims.require(path, RIGHTS[asked.kind], now_ms, host_name)

    def _check_stranger(self, asked: AttachRequest) -> None:
        """Raise TooManyLinks where a peer without a claim has enough links of a kind."""
        if self._claims.shown:
            return
        kind, most, what = asked.kind, STRANGER_CBS_PAIRS_MAX, "links to '$cbs' in one direction"
        if kind is LinkKind.COORDINATE:
            most, what = STRANGER_COORDINATORS_MAX, "links to the coordinator"
        if sum(link.kind is kind for link in self._links.values()) >= most:
            raise TooManyLinks(f"A connection may have at most {most} {what} before its first valid claim.")

    def _open(self, event: LinkAttached, asked: AttachRequest) -> None:
        self._last_number += 1
        number = self._last_number
        address = asked.node.address
        link: BrokerLink
        if asked.kind is LinkKind.SEND:
            to = asked.destination
            link = SenderEndpoint(
                self._context, self._backlog, self._transactions, event, number, asked.node, to
            )
            self._context.commands.append(commands.OpenSender(link.link, address, to.address if to else None))
        elif asked.kind is LinkKind.COORDINATE:
            link = CoordinatorLink(
                self._context, self._backlog, self._transactions, event, number, asked.node
            )
            self._context.commands.append(commands.OpenCoordinator(link.link))
        else:
            unsettled = self._unsettled.setdefault(event.channel, Unsettled())
            link = ReceiverEndpoint(
                self._context,
                self._output,
                self._transactions,
                event,
                number,
                asked.node,
                asked.mode,
                unsettled,
            )
            opening = commands.OpenReceiver(link.link, address, asked.mode, asked.session, event.name)
            self._context.commands.append(opening)
        if asked.kind is not LinkKind.COORDINATE:
            self._transactions.use(event.channel, address, number)
        self._pending[number] = link
        self._links[event.channel, event.handle] = link

    def _refuse(self, link: LinkAttached | BrokerLink, entity: str, error: Exception, now_ms: int) -> None:
        refusal = self._context.reporter.report(error, entity, now_ms)
        self._connection.refuse_link(link.channel, link.handle, refusal)

    def _on_detached(self, event: LinkDetached, now_ms: int) -> None:
        key = (event.channel, event.handle)
        self._nodes.forget(key)
        link = self._links.pop(key, None)
        if link is None:
            return
        self._close(link)

    def _close(self, link: AnyLink) -> None:
        """Forget a link that either end has detached."""
        if isinstance(link, ReplyLink):
            self.replies.remove(link)
        elif not isinstance(link, RequestLink):
            self._drop(link)
            self._context.commands.append(commands.CloseLink(link.link))

    def _drop(self, link: BrokerLink) -> None:
        """Forget a link that is gone; of a receiver, remember enough to release what is still under way."""
        self._by_number.pop(link.number, None)
        self._pending.pop(link.number, None)
        link.forget()
        if isinstance(link, ReceiverEndpoint):
            if link.session_name is not None:
                self._sessions.pop(link.session_name, None)
            if link.locks_in is not None:
                if len(self._closed_receivers) >= _CLOSED_RECEIVERS_MAX:
                    del self._closed_receivers[next(iter(self._closed_receivers))]
                self._closed_receivers[link.number] = link.locks_in

    def detach_unauthorized(self, reason: AuthorizationError, now_ms: int) -> None:
        """Detach the links that no grant covers any more; the connection stays open (wire contract 1.7)."""
        for link in list(self._links.values()):
            paths = claimed_paths(link.node, link.destination if isinstance(link, SenderEndpoint) else None)
            if not all(self._claims.allow(path, RIGHTS[link.kind], now_ms) for path in paths):
                self._end(link, reason, now_ms)

    def _end(self, link: AnyLink, reason: Exception, now_ms: int) -> None:
        """Detach a link with a reason."""
        del self._links[link.channel, link.handle]
        refusal = self._context.reporter.report(reason, shown(link.node.address), now_ms)
        self._connection.detach(link.channel, link.handle, refusal)
        self._close(link)

    # Transfers, flows, dispositions

    def _on_delivery(self, event: DeliveryReceived, now_ms: int) -> None:
        link = self._links.get((event.channel, event.handle))
        if link is not None:
            link.received(event, now_ms)  # type: ignore[union-attr]  # on no other does the engine take transfers
            return
        self._nodes.early(event)

    def _on_oversized(self, event: DeliveryOversized, now_ms: int) -> None:
        link = self._links.get((event.channel, event.handle))
        if isinstance(link, IncomingLink):
            link.oversized(event, now_ms)

    def _on_flow(self, event: LinkFlow, now_ms: int) -> None:
        link = self._links.get((event.channel, event.handle))
        if isinstance(link, ReceiverEndpoint):
            link.flow(event, now_ms)
            self.starved.add(link.number)
        elif isinstance(link, ReplyLink):
            link.flow(event, now_ms)
        elif link is None:
            self._nodes.early(event)

    def _on_disposition(self, event: DispositionReceived, now_ms: int) -> None:
        if event.role is RECEIVER:
            unsettled = self._unsettled.get(event.channel)
            settle(
                self._context,
                self._transactions,
                Unsettled() if unsettled is None else unsettled,
                event,
                now_ms,
            )

    # Effects

    def _accepted(self, effect: effects.Accepted, now_ms: int) -> None:
        reply_to = effect.reply_to
        link = self._by_number.get(reply_to.link_number)
        if link is not None:
            link.accepted(reply_to.number, effect.count, now_ms)  # type: ignore[union-attr]  # the number is no receiver's

    def _rejected(self, effect: effects.Rejected, now_ms: int) -> None:
        link = self._by_number.get(effect.reply_to.link_number)
        if isinstance(link, (SenderEndpoint, CoordinatorLink)):
            link.rejected(effect.reply_to.number, effect.error, now_ms)

    def _declared(self, effect: effects.Declared, now_ms: int) -> None:
        link = self._by_number.get(effect.reply_to.link_number)
        if isinstance(link, CoordinatorLink):
            link.declared(effect.reply_to.number, effect.transaction_id)

    def _transaction_ended(self, effect: effects.TransactionEnded, now_ms: int) -> None:
        link = self._by_number.get(effect.link.number)
        if isinstance(link, CoordinatorLink):
            link.ended(effect.transaction_id)

    def _enlisted(self, effect: effects.Enlisted, now_ms: int) -> None:
        number = effect.reply_to.link_number
        if number == commands.NO_LINK:
            self._answers.take(effect, now_ms)  # a management request: its link is not the broker's
            return
        link = self._by_number.get(number)
        if isinstance(link, (SenderEndpoint, ReceiverEndpoint)):
            link.enlisted(effect.reply_to.number)

    def _deliver(self, effect: effects.Deliver, now_ms: int) -> None:
        number = effect.link.number
        link = self._by_number.get(number)
        if link is not None:
            link.deliver(effect)  # type: ignore[union-attr]  # the number is a receiver's
            self.starved.add(number)
        elif number in self._closed_receivers and effect.lock_token is not None:
            self._context.commands.append(
                commands.Release(self._closed_receivers[number], effect.lock_token, None)
            )

    def _drained(self, effect: effects.Drained, now_ms: int) -> None:
        link = self._by_number.get(effect.link.number)
        if isinstance(link, ReceiverEndpoint):
            link.drained(effect)

    def _settled(self, effect: effects.Settled, now_ms: int) -> None:
        link = self._by_number.get(effect.reply_to.link_number)
        if link is not None:
            link.settled(effect)  # type: ignore[union-attr]  # the number is a receiver's

    def _settlement_failed(self, effect: effects.SettlementFailed, now_ms: int) -> None:
        link = self._by_number.get(effect.reply_to.link_number)
        if isinstance(link, ReceiverEndpoint):
            link.settlement_failed(effect, now_ms)

    def _opened(
        self, effect: effects.SenderOpened | effects.ReceiverOpened | effects.CoordinatorOpened, now_ms: int
    ) -> None:
        link = self._pending.pop(effect.link.number, None)
        if link is None:
            return
        self._by_number[link.number] = link
        link.opened(effect, now_ms)  # type: ignore[arg-type]  # each effect has the number of its kind of link
        if isinstance(link, ReceiverEndpoint):
            self.starved.add(link.number)
            if link.session_name is not None:
                self._sessions[link.session_name] = (link.node.address.path, link.session_id)

    def _link_refused(self, effect: effects.LinkRefused, now_ms: int) -> None:
        link = self._pending.pop(effect.link.number, None)
        if link is None:
            return
        self._links.pop((link.channel, link.handle), None)
        link.forget()
        if not isinstance(effect.error, SessionCannotBeLocked | SessionWaitTimedOut):
            self._transactions.refused(link.channel, link.number)
        self._refuse(link, shown(link.node.address), effect.error, now_ms)

    def _session_lapsed(self, effect: effects.SessionLockLapsed, now_ms: int) -> None:
        link = self._by_number.get(effect.link.number)
        if isinstance(link, ReceiverEndpoint):
            link.session_lapsed()

    def _detach_link(self, effect: effects.DetachLink, now_ms: int) -> None:
        link = self._by_number.pop(effect.link.number, None)
        if link is None:
            return
        self._links.pop((link.channel, link.handle), None)
        link.forget()
        if isinstance(link, ReceiverEndpoint):
            link.unsettled.detached_with = effect.error
        refusal = self._context.reporter.report(effect.error, shown(link.node.address), now_ms)
        self._connection.detach(link.channel, link.handle, refusal)
