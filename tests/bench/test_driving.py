"""What drives a broker for the benchmarks does so with a real one: the load generator's modes, the client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import awaited, over_http, topics
from bench.administration import Administration
from bench.client import Client
from bench.http_pool import Pool
from bench.loadgen import LoadFailed, hand_out, idle_connections, offered
from bench.run import Run, drive_queue, offer_1000, settle_options
from bench.stalls import answer_times
from bench.systems import Peeklock
from bench.transports import TRANSPORTS
from peeklock.amqp.message_writing import encode_message

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peeklock]:
    settings: dict[str, dict[str, object]] = {
        "sessions": {"RequiresSession": True},
        "ids": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"},
    }
    made = {name: topics.rules(6, make) for name, make in topics.FILTERS.items()}
    system = Peeklock(tmp_path_factory.mktemp("broker"), ("bench", "sessions", "ids"), settings, made)
    system.start()
    yield system
    system.stop()


def test_sessions_are_handed_out_in_the_order_in_which_they_could_be_had(broker: Peeklock) -> None:
    options = ("-k", "2", "-l", "5", "-R", "2", *settle_options(broker))
    load = hand_out(broker.endpoint(), "sessions", 3 * 20 * 2, 20, *options)
    assert load.times_handed_out["min"] >= 2
    assert load.steady_rate > 0
    assert load.drain_rate > 0


def test_named_sessions_are_received_from(broker: Peeklock) -> None:
    drive_queue(broker, "send", 100, "-g", "30", queue="sessions")
    options = ("-g", "30", "-G", "-R", "2", *settle_options(broker))
    assert drive_queue(broker, "recv", 100, *options, queue="sessions").receive_rate > 0


def test_no_message_of_several_runs_is_taken_for_a_duplicate(broker: Peeklock) -> None:
    for _ in range(2):
        drive_queue(broker, "send", 50, "-S", "2", queue="ids")
    drive_queue(broker, "recv", 100, *settle_options(broker), queue="ids")


def test_those_who_await_each_answer_leave_the_queue_empty(broker: Peeklock) -> None:
    for pattern in awaited.PATTERNS:
        load = awaited.drive_pattern(broker, pattern, 40)
        assert 0 < load.latency_us["p50"] <= load.latency_us["p99"]
        assert load.broker_us > 0
    with pytest.raises(LoadFailed, match="no progress"):  # there are no more
        drive_queue(broker, "recv", 1, "-T", "0.1", *settle_options(broker))


def test_each_pattern_is_measured_with_fsync_and_without(
    broker: Peeklock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "MESSAGES", 100)
    run = Run(tmp_path, [broker], quick=True)
    awaited.awaited(run)
    assert run.results.left_out == []
    figures = ("broker CPU", "rate", "p50", "p99")
    assert set(run.results.rows) == {
        (name, f"{pattern}, {figure}")
        for name in ("awaited", "awaited, --durability os")
        for pattern in awaited.PATTERNS
        for figure in figures
    }


def test_a_rate_is_offered(broker: Peeklock) -> None:
    load = offer_1000(broker, 100)
    assert load.seconds >= 0.099
    assert load.broker_us > 0
    drive_queue(broker, "recv", 100, *settle_options(broker))


@pytest.mark.parametrize("transport", list(TRANSPORTS))
def test_messages_of_any_size_go_over_each_transport(broker: Peeklock, transport: str) -> None:
    options, _ = TRANSPORTS[transport]
    for size in ("10", "1024", "60000"):
        drive_queue(broker, "both", 300, "-s", size, *options, *settle_options(broker))
    with idle_connections(broker.endpoint(), "bench", 3, *options):
        pass


def test_a_queue_is_purged_while_another_is_sent_to(broker: Peeklock) -> None:
    drive_queue(broker, "send", 200, "-g", "10", queue="sessions")
    endpoint = broker.endpoint()
    with (
        Client(endpoint) as client,
        answer_times(endpoint.port) as times,
        offered(endpoint, "bench", 1000, 60) as offer,
    ):
        assert client.request("sessions", "peeklock:purge-messages", {}) == {"message-count": 200}
    assert all(seconds > 0 for seconds in times)
    drive_queue(broker, "recv", offer.load.count, *settle_options(broker))


def test_a_refused_request_is_told(broker: Peeklock) -> None:
    with Client(broker.endpoint()) as client, pytest.raises(LoadFailed, match="dance"):
        client.request("bench", "dance", {})


def test_transactions_take_one_message_and_leave_two(broker: Peeklock) -> None:
    drive_queue(broker, "send", 40)
    with Client(broker.endpoint()) as client:
        assert client.transactions("bench", 40, 4, encode_message(data=b"two")) > 0
    drive_queue(broker, "recv", 80, *settle_options(broker))


@pytest.mark.parametrize("topic", [name for name in topics.FILTERS if name != "everything"])
def test_a_message_for_a_tenant_comes_to_two_subscriptions(broker: Peeklock, topic: str) -> None:
    drive_queue(broker, "send", 8, "-t", "4", queue=topic)
    for number in range(6):  # of three of the four tenants
        drive_queue(broker, "recv", 2, *settle_options(broker), queue=topics.subscription(number, topic))
    with pytest.raises(LoadFailed, match="no progress"):  # there are no more
        drive_queue(broker, "recv", 1, "-T", "0.1", queue=topics.subscription(5, topic))


def test_messages_and_batches_over_http_are_those_over_amqp(broker: Peeklock) -> None:
    for step, count in ((over_http.http_sends, 40), (over_http.amqp_sends, 40)):
        assert step(broker, count).rate > 0
    for step, count in ((over_http.http_batches, 3), (over_http.amqp_batches, 3)):
        assert step(broker, count).rate > 0
    drive_queue(broker, "recv", 80 + 600, *settle_options(broker))


def test_those_who_wait_over_http_are_woken(broker: Peeklock) -> None:
    with Pool(broker.endpoint(), 1) as pool:
        assert len(over_http.woken(pool, 5, 20)) == 20


def test_copies_for_all_share_one_body(broker: Peeklock) -> None:
    drive_queue(broker, "send", 100, queue="everything")
    assert 100 * 1024 < broker.body_bytes() < 2 * 100 * 1024  # beside what other tests left
    for number in range(6):
        path = topics.subscription(number, "everything")
        drive_queue(broker, "recv", 100, *settle_options(broker), queue=path)


def test_subscriptions_come_and_go_while_a_broker_runs(broker: Peeklock) -> None:
    with Administration(broker.endpoint()) as administration:
        administration.create_subscription("everything", "new")
        with pytest.raises(LoadFailed, match="409"):
            administration.create_subscription("everything", "new")
        administration.delete("everything/Subscriptions/new")
        with pytest.raises(LoadFailed, match="404"):
            administration.delete("everything/Subscriptions/new")
