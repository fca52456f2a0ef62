"""Show what a Celery application does with the broker: JSON lines in and out, see ../README.md.

Owns: the features. Must not know: how application and broker are brought together (network.py).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kombu import Exchange, Queue
from network import CONCURRENCY, OTHER_HOST, ROOT_RULE, Surroundings

WAIT_S = 25
"""What a task may take at most, restarts of worker and broker included."""

Answer = dict[str, str]


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is log
    with Surroundings() as around:
        features = Features(around)
        for line in sys.stdin:
            name = json.loads(line)["feature"]
            print(json.dumps({"feature": name, **features.show(name)}), file=answers, flush=True)


class Features:
    """One method a feature; what has none, a Celery application does not offer."""

    def __init__(self, around: Surroundings) -> None:
        import shop  # which reads the environment that `around` has made

        self._around = around
        self._shop = shop
        self._connection = shop.app.connection_for_write()
        self._shown: dict[str, Callable[[], Answer | None]] = {
            "amqp-plain": lambda: _not_offered("kombu's transport always uses TLS."),
            "amqp-tls": self.amqp_tls,
            "wrong-key": self.wrong_key,
            "missing-right": lambda: _not_offered("It creates its queues itself, so it needs `Manage`."),
            "reconnect": self.reconnect,
            "send": self.send,
            "schedule": self.schedule,
            "receive-and-delete": self.receive_and_delete,
            "complete": self.complete,
            "abandon": self.abandon,
            "renew-lock": self.renew_lock,
            "purge": self.purge,
            "push": self.push,
            "admin-queues": self.admin_queues,
        }

    def show(self, name: str) -> Answer:
        """Try a feature."""
        try:
            if name not in self._shown:
                return _not_offered("")
            return self._shown[name]() or {"status": "works"}
        except Exception as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            return {"status": "failed", "error": f"{where.name}:{where.lineno}: {error!r}"}

    def amqp_tls(self) -> None:
        """Nothing but TLS is there; a name that is not in the certificate is refused."""
        assert self._shop.price.delay(2, 3).get(timeout=WAIT_S) == 6
        url = self._around.url.replace(self._around.url.rpartition("@")[2], OTHER_HOST)
        with self._shop.app.connection_for_write(url) as connection:
            sender = connection.default_channel.queue_service.get_queue_sender("celery-celery")
            refusal = _error_of(lambda: sender.send_messages(ServiceBusMessage("never")))
        assert isinstance(refusal, ServiceBusError), refusal
        assert "certificate" in str(refusal), refusal

    def wrong_key(self) -> None:
        """The error is that of Azure's client under the transport."""
        url = f"azureservicebus://{ROOT_RULE}:bm90IHRoZSBrZXkgb2YgYW55Ym9keQ==@{self._around.url.rpartition('@')[2]}"
        with self._shop.app.connection_for_write(url) as connection:
            send = partial(self._shop.price.apply_async, (1, 1), queue="wrong-key", retry=False)
            refusal = _error_of(lambda: send(connection=connection))
        assert isinstance(refusal, ClientAuthenticationError), refusal
        administration = self._connection.default_channel.queue_mgmt_service
        missing = _error_of(lambda: administration.get_queue("celery-wrong-key"))
        assert isinstance(missing, ResourceNotFoundError), missing

    def reconnect(self) -> None:
        """Application and worker go on, each with the connections that it finds broken; so does a task."""
        under_way = self._shop.pack.delay("restarted", 1)
        self._wait_until_run("restarted")
        self._around.stop_broker()
        self._around.start_broker()
        assert self._shop.price.delay(3, 3).get(timeout=WAIT_S) == 9
        under_way.get(timeout=WAIT_S)

    def send(self) -> None:
        """A task runs in the worker, and its result comes back by a queue of its own."""
        result = self._shop.price.apply_async((6, 7), task_id="order-1")
        assert result.get(timeout=WAIT_S) == 42
        assert result.id == "order-1"

    def schedule(self) -> Answer:
        """The worker keeps the message until its time, under lock."""
        begun = time.time()
        ran = self._shop.now.apply_async(countdown=2).get(timeout=WAIT_S)
        assert 2 <= ran - begun < 5, ran - begun
        return _differs("The worker gets the message at once and waits. Nothing can be cancelled.")

    def receive_and_delete(self) -> None:
        """A consumer without acknowledgements receives and deletes."""
        with self._connection.SimpleQueue("quick", no_ack=True) as queue:
            queue.put({"order": 7})
            assert queue.get(timeout=5).payload == {"order": 7}
            assert queue.qsize() == 0

    def complete(self) -> None:
        """A message that was acknowledged is gone."""
        with self._connection.SimpleQueue("slow") as queue:
            queue.put({"order": 8})
            message = queue.get(timeout=5)
            assert queue.qsize() == 1
            message.ack()
            assert queue.qsize() == 0

    def abandon(self) -> Answer:
        """A task that fails runs again, and so does one whose worker was killed."""
        assert self._shop.fetch.delay("retried").get(timeout=WAIT_S) == 2
        assert self._shop.runs("retried") == 2

        result = self._shop.pack.delay("killed", 3)
        self._wait_until_run("killed")
        self._around.kill_worker()
        self._around.start_worker()
        result.get(timeout=WAIT_S)
        assert self._shop.runs("killed") == 2, self._shop.runs("killed")
        return _differs(
            "A retry is a new message. The message of a killed worker is delivered again when its lock ends."
        )

    def renew_lock(self) -> None:
        """A task that takes longer than the lock runs once."""
        self._shop.pack.delay("long", 6.5).get(timeout=WAIT_S)
        assert self._shop.runs("long") == 1, self._shop.runs("long")

    def purge(self) -> None:
        """What `celery purge` does."""
        for amount in range(15):
            self._shop.price.apply_async((amount, 1), queue="idle", connection=self._connection)
        channel = self._connection.default_channel
        assert channel.queue_purge("idle") == 15
        assert channel.queue_declare("idle").message_count == 0

    def push(self) -> None:
        """The worker's threads run tasks side by side."""
        results = [self._shop.pack.delay(f"pushed {number}", 0.3) for number in range(20)]
        ran = [result.get(timeout=WAIT_S) for result in results]
        threads = {thread for thread, _, _ in ran}
        assert len(threads) == CONCURRENCY, threads
        at_once = max(sum(begun <= moment < ended for _, begun, ended in ran) for _, moment, _ in ran)
        assert 2 <= at_once <= CONCURRENCY, at_once

    def admin_queues(self) -> Answer:
        """The transport makes a queue when it is declared, and can delete it."""
        channel = self._connection.default_channel
        queue = Queue("made", Exchange("made"), "made", channel=channel)
        queue.declare()
        made = channel.queue_mgmt_service.get_queue("celery-made")
        assert made.lock_duration.total_seconds() == 5, made.lock_duration
        queue.declare()  # it may be there
        queue.delete()
        missing = _error_of(lambda: channel.queue_mgmt_service.get_queue("celery-made"))
        assert isinstance(missing, ResourceNotFoundError), missing
        return _differs("It creates, counts and deletes its queues itself, and sets only the lock duration.")

    def _wait_until_run(self, order: str) -> None:
        ends_at = time.monotonic() + WAIT_S
        while not self._shop.runs(order):
            assert time.monotonic() < ends_at, f"{order} did not begin"
            time.sleep(0.05)


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _differs(how: str) -> Answer:
    return {"status": "differs", "how": how}


def _not_offered(how: str) -> Answer:
    return {"status": "not offered", "how": how}


if __name__ == "__main__":
    main()
