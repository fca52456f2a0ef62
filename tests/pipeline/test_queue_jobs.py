"""The jobs over queues, against a broker: nothing is lost on the way into a table and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.cli import main
from peeklock.client.connection import BlockingConnection
from peeklock.client.links import Delivery, ReceiveMode
from peeklock.jobs.edits import ID_LENGTH_MAX, new_id
from peeklock.testing.served import ServedBroker
from tests.pipeline.synthetic import make_log, write_segments

pytestmark = pytest.mark.spark

MakeQueue = Callable[..., str]


@pytest.fixture
def run(broker: ServedBroker) -> Callable[..., Result]:
    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(
            main,
            ["pipeline", *map(str, arguments)],
            env={"SERVICEBUS_CONNECTION_STRING": broker.connection_string},
        )

    return invoke


def send(own: BlockingConnection, path: str, count: int, *, kind: str = "a") -> None:
    sender = own.sender(path)
    for number in range(count):
        sender.send(
            encode_message(
                properties=Properties(message_id=f"{kind}-{number}", subject=kind),
                application_properties={"number": number, "kind": kind},
                data=f"body {number}".encode(),
            )
        )
    sender.flush()
    sender.close()


def receive(own: BlockingConnection, path: str, count_max: int = 1000) -> list[Delivery]:
    receiver = own.receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
    found: list[Delivery] = []
    while arrived := receiver.receive(count_max, 0.2):
        found += arrived
    receiver.close()
    return found


def ids(deliveries: list[Delivery]) -> list[str]:
    return sorted(str(scan(delivery.payload).decode_properties().message_id) for delivery in deliveries)


def dead_letter(client: Any, path: str, count: int, reason: str) -> None:
    with client.get_queue_receiver(path, max_wait_time=5) as receiver:
        left = count
        while left:
            for message in receiver.receive_messages(left, max_wait_time=5):
                receiver.dead_letter_message(message, reason=reason, error_description="by a test")
                left -= 1


@pytest.mark.long
def test_a_queue_goes_into_a_table_and_back_bit_for_bit(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """Req: X-04"""
    source, target = make_queue(), make_queue()
    send(own, source, 300)
    arguments = ["capture", "--entity", source, "--to", tmp_path / "lake", "--encoded", "--max-messages", 100]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert receive(own, source) == []
    send(own, source, 50, kind="b")
    second = run(*arguments)
    assert second.exit_code == 0, second.output
    assert "captured up to batch" in second.output
    third = run(*arguments)
    assert (third.exit_code, "nothing new" in third.output) == (0, True)
    assert "captured up to batch" not in third.output
    table = spark.read.parquet(str(tmp_path / "lake"))
    assert (table.count(), table.select("messageId").distinct().count()) == (350, 350)
    assert list((tmp_path / "lake").glob("enqueued_date=*"))
    dry = run(
        "replay", "--from", tmp_path / "lake", "--entity", target, "--where", "subject = 'b'", "--dry-run"
    )
    assert "50 messages would be sent" in dry.output
    assert "an entity with duplicate detection drops" in dry.output
    sent = run("replay", "--from", tmp_path / "lake", "--entity", target)
    assert sent.exit_code == 0, sent.output
    assert f"350 messages sent to {target}" in sent.output
    assert "an entity with duplicate detection drops" in sent.output
    replayed = receive(own, target)
    assert ids(replayed) == sorted([f"a-{n}" for n in range(300)] + [f"b-{n}" for n in range(50)])
    told = [scan(delivery.payload).decode_application_properties() for delivery in replayed]
    assert sorted(one["number"] for one in told if one["kind"] == "b") == list(range(50))


def test_rows_without_whole_messages_are_replayed_by_their_columns(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, make_queue: MakeQueue, tmp_path: Path
) -> None:
    source, target = make_queue(), make_queue()
    send(own, source, 20)
    arguments = ["--entity", source, "--to", tmp_path / "lake", "--mode", "browse"]
    done = run("capture", *arguments)
    assert done.exit_code == 0, done.output
    assert len(receive(own, source)) == 20
    done = run("replay", "--from", tmp_path / "lake", "--entity", target, "--limit", 5)
    assert done.exit_code == 0, done.output
    (one, *others) = receive(own, target)
    assert len(others) == 4
    assert scan(one.payload).decode_application_properties()["kind"] == "a"


def test_an_event_log_with_bodies_is_replayed(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, make_queue: MakeQueue, tmp_path: Path
) -> None:
    target = make_queue()
    log = make_log(messages=60, seed=2, bodies=True, topics=(), session_entities=())
    write_segments(tmp_path / "log", log)
    done = run("replay", "--from", tmp_path / "log", "--entity", target, "--where", "entity = 'orders'")
    assert done.exit_code == 0, done.output
    wanted = sorted(
        row["message_id"]
        for row in log.to_pylist()
        if row["event_type"] in {"enqueued", "scheduled"} and row["entity"] == "orders" and row["message_id"]
    )
    assert ids(receive(own, target)) == wanted
    write_segments(tmp_path / "silent", make_log(messages=60, seed=2))
    silent = run("replay", "--from", tmp_path / "silent", "--entity", target)
    assert (silent.exit_code, "holds no bodies" in silent.output) == (1, True)


def test_dead_letters_are_seen_chosen_and_sent_again(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, client: Any, make_queue: MakeQueue
) -> None:
    """The queue detects duplicates and still knows the old ids: nothing is lost by that. Req: X-04"""
    queue = make_queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(minutes=10)
    )
    send(own, queue, 30, kind="good")
    dead_letter(client, queue, 30, "Unreadable")
    send(own, queue, 10, kind="bad")
    dead_letter(client, queue, 10, "Forbidden")
    seen = run("deadletters", "--entity", queue)
    assert seen.exit_code == 0, seen.output
    assert "Unreadable" in seen.output
    assert "Forbidden" in seen.output
    dry = run("resubmit", "--entity", queue, "--reason", "Unreadable", "--dry-run")
    assert f"30 messages would be sent to {queue}" in dry.output
    done = run("resubmit", "--entity", queue, "--reason", "Unreadable", "--where", "messageId <> 'good-3'")
    assert done.exit_code == 0, done.output
    assert f"29 messages sent to {queue}" in done.output
    left = receive(own, f"{queue}/$DeadLetterQueue")
    assert ids(left) == sorted(["good-3", *(f"bad-{n}" for n in range(10))])
    again = receive(own, queue)
    old = sorted(name.split("+resubmitted-")[0] for name in ids(again))
    assert old == sorted(f"good-{n}" for n in range(30) if n != 3)
    properties = scan(again[0].payload).decode_application_properties()
    assert set(properties) == {"number", "kind"}


def test_ids_can_be_kept_without_duplicate_detection(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, client: Any, make_queue: MakeQueue
) -> None:
    queue, target = make_queue(), make_queue()
    send(own, queue, 5)
    dead_letter(client, queue, 5, "Unreadable")
    done = run("resubmit", "--entity", queue, "--to-entity", target, "--keep-ids", "--limit", 2)
    assert done.exit_code == 0, done.output
    assert len(ids(receive(own, target))) == 2
    assert len(receive(own, f"{queue}/$DeadLetterQueue")) == 3


def test_what_is_wrong_is_told_in_plain_words(
    spark: Any, run: Callable[..., Result], make_queue: MakeQueue, tmp_path: Path, broker: ServedBroker
) -> None:
    for arguments in (
        ["capture", "--entity", "nowhere", "--to", tmp_path / "a"],
        ["resubmit", "--entity", "nowhere"],
        ["deadletters", "--entity", "nowhere"],
        ["release", "--entity", "nowhere"],
    ):
        done = run(*arguments)
        assert done.exit_code == 1, (arguments, done.output)
        assert "nowhere" in done.output
        assert "Traceback" not in done.output
        assert len(done.output.splitlines()) == 1, done.output
    empty = run("replay", "--from", tmp_path / "none", "--entity", make_queue())
    assert (empty.exit_code, "there is no table" in empty.output) == (1, True)
    wrong = CliRunner().invoke(main, ["pipeline", "release", "--entity", "q"])
    assert (wrong.exit_code, "SERVICEBUS_CONNECTION_STRING" in wrong.output) == (2, True)


def test_a_format_without_its_jar_is_named_with_the_jar_and_nothing_is_taken(
    spark: Any, run: Callable[..., Result], own: BlockingConnection, make_queue: MakeQueue, tmp_path: Path
) -> None:
    queue = make_queue()
    send(own, queue, 3)
    table = tmp_path / "table"
    done = run("capture", "--entity", queue, "--to", table, "--sink-format", "delta")
    assert done.exit_code == 1
    version = ".".join(spark.version.split(".")[:2])
    assert f"is 'delta', and Spark {spark.version} has no such format" in done.output
    assert f"the jars io.delta:delta-spark_{version}_2.13 and io.delta:delta-storage" in done.output
    assert len(done.output.splitlines()) == 1, done.output
    assert len(receive(own, queue)) == 3
    table.mkdir(exist_ok=True)
    done = run("replay", "--from", table, "--source-format", "iceberg", "--entity", queue)
    assert done.exit_code == 1
    assert f"the jar org.apache.iceberg:iceberg-spark-runtime-{version}_2.13" in done.output
    done = run("replay", "--from", table, "--source-format", "hudi", "--entity", queue)
    assert "--source-format is 'hudi'" in done.output
    assert "with --conf spark.jars=FILE.jar" in done.output


def test_new_ids_are_of_a_legal_length_and_always_the_same() -> None:
    assert new_id("job-1", 7) == "job-1+resubmitted-7"
    long = "x" * ID_LENGTH_MAX
    assert len(new_id(long, 1 << 62)) <= ID_LENGTH_MAX
    assert new_id(long, 7) == new_id(long, 7) != new_id(long, 8)
