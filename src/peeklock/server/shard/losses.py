"""What went wrong and no client is told of: it is logged.

Owns: what has been told. Must not know: why it went wrong.
"""

from __future__ import annotations

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.effects import BodiesLost
from peeklock.server import log


class Losses:
    """Tells each loss once."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._dropped_sends = 0
        self._failed_evaluations = 0

    def tell(self) -> None:
        """Warn of what was counted since the last time."""
        dropped_sends = self._namespace.dropped_sends
        if dropped_sends > self._dropped_sends:
            log.warning(
                "pre-settled sends were refused and dropped; their senders cannot learn it",
                {"dropped": dropped_sends - self._dropped_sends, "since_start": dropped_sends},
            )
            self._dropped_sends = dropped_sends
        failed = self._namespace.failed_evaluations
        if failed > self._failed_evaluations:
            log.warning(
                "rules could not be evaluated for messages: dead letters of subscriptions with the reason "
                "FilterEvaluationException say which and why; look at the rules of subscriptions without "
                "DeadLetteringOnFilterEvaluationExceptions, where they count as false",
                {"failed": failed - self._failed_evaluations, "since_start": failed},
            )
            self._failed_evaluations = failed


def tell_lost_bodies(answer: BodiesLost) -> None:
    """Say which messages have lost their body; that is durable."""
    for lost in answer.lost:
        fields = {"queue": lost.queue_name, "sequence_number": lost.sequence_number}
        if lost.session_id is not None:
            fields["session_id"] = lost.session_id
        log.error("a body is damaged on the disk; its message was dead-lettered without it", fields)
