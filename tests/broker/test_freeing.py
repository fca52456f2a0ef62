"""What the core answers is freed without the collector."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import (
    Address,
    Discharge,
    LinkId,
    LockToken,
    LookUp,
    OpenCoordinator,
    OpenSender,
    ReplyTo,
)
from peeklock.broker.vocabulary.effects import Failed, LinkRefused, Rejected
from peeklock.broker.vocabulary.quotas import STANDARD

LINK = LinkId(1, 1)


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize(
    "command",
    [
        OpenSender(LinkId(1, 2), Address("missing")),
        LookUp(Address("missing"), ReplyTo(1, 0, 1)),
        Discharge(LINK, b"unknown", False, ReplyTo(*LINK, 0)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_refusal_is_freed_at_once(command: Any) -> None:
    """Req: R-05. A peer causes thousands of them a second: to collect them took 140 ms of one turn."""
    namespace = Namespace(limits=STANDARD, tokens=lambda: LockToken(os.urandom(16)), digest_key=b"test")
    namespace.apply(OpenCoordinator(LINK), 0)
    _, effects = namespace.apply(command, 0)
    [effect] = effects
    assert isinstance(effect, Failed | LinkRefused | Rejected)
    error = weakref.ref(effect.error)
    del effect, effects
    assert error() is None
