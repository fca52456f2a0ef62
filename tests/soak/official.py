"""Threads with the official client, and over HTTP: messages by the JSON API, entities by the administration.

Owns: what they do, and what must hold. Must not know: when the broker dies.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.kill.ledger import Broken
from tests.soak.features import Feature
from tests.soak.site import Site

STEPS_A_CONNECTION = 30
RETRIES: dict[str, Any] = {"retry_total": 3, "retry_backoff_factor": 0.2, "retry_backoff_max": 2}


class Official(Feature):
    """The official client: batches; messages completed, abandoned, renewed and dead-lettered."""

    pause_s = 0.4

    def __init__(self, queue: str, settings: Callable[[], Any], seed: int, site: Site) -> None:
        super().__init__(queue, settings, seed)
        self._site = site
        self._buried: set[int] = set()
        """Uids whose dead-lettering was sent."""

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (ServiceBusError, ValueError, OSError) as error:
            # ValueError: the client's own, for a settlement after its link has closed.
            if isinstance(error, ValueError) and "closed" not in str(error) and "lock" not in str(error):
                raise
            self.breaks += 1

    def step(self) -> None:
        with self._open() as client, client.get_queue_sender(self.queue) as sender:
            receiver, digger = self._receivers(client)
            with receiver, digger:
                for _ in range(STEPS_A_CONNECTION):
                    if self.stopping.wait(self.pause_s):
                        return
                    self._send(sender)
                    self._receive(receiver, careless=True)
                    self._dig(digger)

    def _open(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._site.connection_string(), **RETRIES)

    def _receivers(self, client: ServiceBusClient) -> tuple[ServiceBusReceiver, ServiceBusReceiver]:
        dead = ServiceBusSubQueue.DEAD_LETTER
        return client.get_queue_receiver(self.queue), client.get_queue_receiver(self.queue, sub_queue=dead)

    def _send(self, sender: Any) -> None:
        uids = [self.ledger.sending() for _ in range(5)]
        sender.send_messages([ServiceBusMessage(f"uid={uid:08d};", message_id=str(uid)) for uid in uids])
        for uid in uids:
            self.ledger.answered(uid, None)

    def _receive(self, receiver: ServiceBusReceiver, *, careless: bool) -> None:
        for message in receiver.receive_messages(max_message_count=20, max_wait_time=0.3):
            uid = int(message.message_id or 0)
            if uid in self._buried:
                raise_if_settled(self.ledger.fates[uid])
            self.ledger.delivered(uid, message.sequence_number or 0)
            roll = self.random.random() if careless else 1.0
            if roll < 0.1:
                receiver.abandon_message(message)
            elif roll < 0.2:
                self._buried.add(uid)
                receiver.dead_letter_message(message, reason="soak")
            else:
                if roll < 0.3:
                    receiver.renew_message_lock(message)
                self._complete(receiver, message, uid)

    def _dig(self, receiver: ServiceBusReceiver) -> None:
        for message in receiver.receive_messages(max_message_count=20, max_wait_time=0.3):
            uid = int(message.message_id or 0)
            if uid not in self._buried:
                raise Broken(f"{self.queue}: {uid} is a dead letter of {message.dead_letter_reason}")
            raise_if_settled(self.ledger.fates[uid])
            self._complete(receiver, message, uid)

    def _complete(self, receiver: ServiceBusReceiver, message: Any, uid: int) -> None:
        self.ledger.completing(uid)
        receiver.complete_message(message)
        self.ledger.completed(uid)

    def last_step(self) -> None:
        with self._open() as client:
            receiver, digger = self._receivers(client)
            with receiver, digger:
                self._receive(receiver, careless=False)
                self._dig(digger)


def raise_if_settled(fate: Any) -> None:
    """Raise if a message came back. Raises: Broken."""
    if fate.completed:
        raise Broken(f"came back after its completion was acknowledged: {fate}")


class Entities(Feature):
    """Creates, changes and deletes queues, and uses them by the JSON API; what was answered stays so."""

    pause_s = 2.0

    def __init__(self, queue: str, settings: Callable[[], Any], seed: int, site: Site) -> None:
        super().__init__(queue, settings, seed)
        self._site = site
        self._made = 0
        self._present: list[str] = []

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (AzureError, OSError, http.client.HTTPException):
            self.breaks += 1

    def step(self) -> None:
        for name in self._present:
            self._expect(200, "GET", f"/$api/v1/entities/{name}")
        with ServiceBusAdministrationClient.from_connection_string(
            self._site.connection_string(), connection_verify=str(self._site.broker.authority())
        ) as administration:
            self._made += 1
            name = f"made-{self._made}"
            with suppress(ResourceExistsError):  # asked again by the client
                administration.create_queue(name, max_delivery_count=7)
            self._present.append(name)
            self._use(name)
            about = administration.get_queue(name)
            about.max_delivery_count = 9
            administration.update_queue(about)
            if administration.get_queue(name).max_delivery_count != 9:
                raise Broken(f"{name} was changed, and is as before")
            while len(self._present) > 3:
                self._remove(administration, self._present[0])

    def _remove(self, administration: ServiceBusAdministrationClient, name: str) -> None:
        self._present.remove(name)
        try:
            administration.delete_queue(name)
        except ResourceNotFoundError:
            return  # asked again by the client
        self._expect(404, "GET", f"/$api/v1/entities/{name}")

    def _use(self, name: str) -> None:
        path = f"/$api/v1/entities/{name}"
        bodies = [{"body": f"{name} {n}"} for n in range(3)]
        self._expect(201, "POST", f"{path}/messages", bodies)
        found = json.loads(self._expect(200, "POST", f"{path}/locks", {"max": 3}))
        for delivery in found["deliveries"]:
            # The lock is gone if the broker died meanwhile.
            self._expect(204, "DELETE", f"{path}/locks/{delivery['lock']['token']}", passing=(404, 409, 410))

    def _expect(
        self, wanted: int, method: str, path: str, body: Any = None, passing: tuple[int, ...] = ()
    ) -> bytes:
        status, answer = self._site.ask(method, path, body)
        if status == 503:
            raise OSError("the broker stops")
        if status != wanted and status not in passing:
            raise Broken(f"{method} {path}: {status}, not {wanted}: {answer[:500]!r}")
        return answer

    def is_drained(self) -> bool:
        return True

    def last_step(self) -> None:
        """Nothing is left to receive."""

    def judge(self) -> dict[str, int]:
        """Check that what was created is there."""
        for name in self._present:
            self._expect(200, "GET", f"/$api/v1/entities/{name}")
        return {"queues created": self._made}
