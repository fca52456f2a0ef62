"""Valid performatives with boundary values: against the pure packages, and against a process over each
wire."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peeklock.amqp.link import Link
from peeklock.amqp.serial import distance
from peeklock.demo.broker import BrokerProcess
from tests.fuzz.performatives import CONNECTIONS, Author, Failed, run_seed
from tests.fuzz.wired import CONFIG, fresh_token, play
from tests.server.test_defects import open_link
from tests.server.test_process import health
from tests.server.wires import KINDS, Kind

SEEDS = 120
"""Seeds of `CONNECTIONS` sequences each."""

WIRED = 120
"""Sequences over each wire."""


@pytest.mark.parametrize("part", range(10))
def test_no_sequence_of_boundary_values_meets_a_defect(part: int) -> None:
    """Req: R-05."""
    for seed in range(part, SEEDS, 10):
        run_seed(seed)


def test_credit_past_32_bits_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One frame ended the broker: its echo could not be encoded."""

    def granted_by_peer(link: Link, delivery_count: int | None, credit: int) -> None:
        base = 0
        if delivery_count is not None:
            base = link.counted + distance(link.delivery_count, delivery_count)
        link.granted = max(base + credit, link.counted)

    monkeypatch.setattr(Link, "granted_by_peer", granted_by_peer)
    with pytest.raises(Failed) as found:
        deque(map(run_seed, range(SEEDS)), maxlen=0)
    assert "cannot be encoded as UInt" in str(found.value.__cause__)
    assert found.value.__notes__


def test_a_seed_writes_the_same_bytes_again() -> None:
    def written() -> list[bytes]:
        random = Random(7)
        return [b"".join(Author(random, ("token",), claimed=True).reads()) for _ in range(CONNECTIONS)]

    assert written() == written()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_meets_no_defect_over_any_wire(kind: Kind, config: Path, tmp_path: Path) -> None:
    """Req: R-05."""
    with BrokerProcess(tmp_path, ["--durability=os", f"--config={config}"]) as broker:
        token = fresh_token()
        for number in range(WIRED):
            play(kind, broker.amqp_port, number, token)
        open_link(kind, broker.amqp_port).close()
        figures: dict[str, Any] = health(broker)
        assert (figures["status"], figures["defects"]) == ("ok", 0)
        assert broker.stop() == 0
        log = broker.log.read_text()
    assert '"event": "refused"' in log  # they came as far as the gateway
    assert "Traceback" not in log
    assert '"level": "error"' not in log
