"""A broker whose keys lack rights: `python -m tests.interop.rights_broker DATA CONFIG`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from peeklock.auth import Authority, Right, SasRule
from peeklock.server.process import serve
from peeklock.server.settings import Settings

RULES = (
    SasRule("sender", "sender-key", rights=frozenset({Right.SEND})),
    SasRule("listener", "listener-key", rights=frozenset({Right.LISTEN})),
    SasRule("of-topic", "of-topic-key", rights=frozenset({Right.SEND, Right.LISTEN}), path="t"),
    SasRule(
        "of-subscription", "of-subscription-key", rights=frozenset({Right.LISTEN}), path="t/Subscriptions/a"
    ),
)

if __name__ == "__main__":
    settings = Settings(
        data=Path(sys.argv[1]),
        config=Path(sys.argv[2]),
        host="127.0.0.1",
        amqp_port=0,
        http_port=0,
        durability="os",
        tls_cert=None,
        tls_key=None,
        tier="standard",
        min_free_bytes=None,
    )
    sys.exit(serve(settings, time.monotonic(), Authority(RULES)))
