"""`peeklock purge`, `move` and `dead-letters` against a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.amqp.types import Array, Long
from peeklock.cli import main
from peeklock.client import (
    DEFER,
    Administration,
    BlockingConnection,
    ConnectionString,
    Delivery,
    Properties,
    ReceiveMode,
    encode_message,
    scan,
)
from peeklock.client.links import dead_letter
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.plan import Plan
from peeklock.testing.served import ServedBroker


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with ServedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def administration(served: ServedBroker) -> Administration:
    return Administration.of(ConnectionString.parse(served.connection_string))


@pytest.fixture
def connection(served: ServedBroker) -> Iterator[BlockingConnection]:
    made = BlockingConnection(ConnectionString.parse(served.connection_string))
    yield made
    made.close()


@pytest.fixture
def make(administration: Administration, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Make a queue of this test."""
    count = 0

    def create(**settings: Any) -> str:
        nonlocal count
        count += 1
        name = re.sub(r"\W+", "-", f"{request.node.name}-{count}")
        administration.create("queue", name, settings)
        return name

    return create


@pytest.fixture
def run(served: ServedBroker, tmp_path: Path) -> Callable[..., Result]:
    def invoke(*arguments: object, text: str | None = None) -> Result:
        environment = {
            "SERVICEBUS_CONNECTION_STRING": served.connection_string,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        return CliRunner().invoke(main, [*map(str, arguments)], input=text, env=environment)

    return invoke


def send(connection: BlockingConnection, path: str, count: int, **further: Any) -> None:
    sender = connection.sender(path)
    for number in range(count):
        properties = Properties(message_id=f"id-{number}", subject="pizza", **further)
        sender.send(
            encode_message(
                properties=properties,
                application_properties={"n": number, "kind": "even" if number % 2 == 0 else "odd"},
                data=json.dumps({"n": number, "a": {"b": number % 3}}).encode(),
            )
        )
    sender.flush()
    sender.close()


def take(connection: BlockingConnection, path: str, count: int) -> tuple[Any, list[Delivery]]:
    receiver = connection.receiver(path, ReceiveMode.PEEK_LOCK)
    return receiver, receiver.receive(count, 1)


def kill(connection: BlockingConnection, path: str, count: int, reason: str = "bad") -> None:
    """Dead-letter the first messages."""
    receiver, deliveries = take(connection, path, count)
    for delivery in deliveries:
        receiver.settle(delivery, dead_letter(reason, "why"))
    receiver.flush()
    receiver.close()


def there(run: Callable[..., Result], *place: str) -> list[dict[str, Any]]:
    result = run("search", *place, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(each["properties"]["n"] for each in found)


def no_checkpoints(folder: Path) -> bool:
    return not [*folder.rglob("*.json*")]


# Move


def test_what_matches_is_moved_and_edited_and_the_rest_is_as_it_was(
    run: Callable[..., Result],
    connection: BlockingConnection,
    make: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = make(), make(RequiresSession=True)
    send(connection, source, 30)
    edits = ("--set", "size=large", "--set", "v:=2", "--remove", "kind", "--set-subject", "s")
    result = run(
        *("move", source, target, "--filter", "kind = 'even'", "--session", "none", "--dry-run"),
    )
    assert (result.exit_code, result.output) == (0, f"0 messages would be moved to {target}\n")
    result = run(
        *("move", source, target, "--filter", "kind = 'even'", *edits),
        *("--set-session", "a", "--set-ttl", "1h"),
    )
    assert result.exit_code == 0, result.output
    first, checkpoint, last = result.stdout.splitlines()
    assert first == (
        f"15 messages from {source} to {target}. "
        "Exactly once: each message is sent and removed in one transaction."
    )
    assert checkpoint.startswith("Checkpoint: ")
    assert last == f"15 messages moved to {target}"
    assert no_checkpoints(tmp_path)
    moved = there(run, target)
    assert numbers(moved) == [*range(0, 30, 2)]
    one = moved[0]
    assert one["properties"] == {"n": 0, "size": "large", "v": 2}
    assert (one["subject"], one["sessionId"], one["timeToLive"], one["messageId"]) == (
        *("s", "a", 3600, "id-0"),
    )
    left = there(run, source)
    assert numbers(left) == [*range(1, 30, 2)]
    assert {each["deliveryCount"] for each in left} == {0}
    assert len(take(connection, source, 30)[1]) == 15, "released"


def test_sessions_are_moved_in_their_order(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source, target = make(RequiresSession=True), make(RequiresSession=True)
    for session in "abc":
        send(connection, source, 10, group_id=session)
    result = run("move", source, target, "--filter", "n < 5", "--count", "12", "--rate", "1000")
    assert result.exit_code == 0, result.output
    assert f"12 messages moved to {target}" in result.stdout
    for session in "abc":
        left = [each["properties"]["n"] for each in there(run, source, "--session", session)]
        moved = [each["properties"]["n"] for each in there(run, target, "--session", session)]
        assert sorted(left + moved) == [*range(10)]
        assert moved == sorted(moved)
    assert len(there(run, target)) == 12


def test_a_target_with_sessions_asks_for_one(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source, target = make(), make(RequiresSession=True)
    send(connection, source, 2)
    result = run("move", source, target)
    assert (result.exit_code, "Name one: --set-session ID." in result.stderr) == (1, True), result.stderr
    assert len(there(run, source)) == 2


def test_a_session_that_another_holds_is_left(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str], tmp_path: Path
) -> None:
    source, target = make(RequiresSession=True), make(RequiresSession=True)
    for session in "ab":
        send(connection, source, 3, group_id=session)
    holder = connection.receiver(source, ReceiveMode.PEEK_LOCK, "a")
    assert holder.receive(1, 1)
    result = run("move", source, target)
    assert result.exit_code == 1, result.output
    assert "3 messages left: other receivers hold them" in result.stderr
    [file] = tmp_path.rglob("*.json")
    assert f"3 messages moved. Go on with: peeklock move --resume {file}" in result.stderr
    send(connection, source, 1, group_id="b")
    holder.close()
    again = run("move", "--resume", file)
    assert again.exit_code == 0, again.output
    assert f"6 messages moved to {target}" in again.stdout
    assert [each["sessionId"] for each in there(run, source)] == ["b"], "it came after the start"
    assert no_checkpoints(tmp_path)


def test_a_target_that_detects_duplicates_gets_new_ids(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source, target = make(), make(RequiresDuplicateDetection=True)
    send(connection, source, 4)
    send(connection, target, 2)
    result = run("move", source, target)
    assert "They get new message ids" in result.stdout
    assert len(there(run, target)) == 6
    assert {each["messageId"] for each in there(run, target)} >= {"id-0", "id-3+moved-4"}
    send(connection, source, 1)
    kept = run("move", source, target, "--keep-ids")
    assert "new message ids" not in kept.stdout
    assert (kept.exit_code, len(there(run, target))) == (0, 6), "the target knows the id"


@pytest.mark.parametrize("partitioned", ["source", "target"])
def test_an_entity_with_partitions_has_no_transaction_for_a_job(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str], partitioned: str
) -> None:
    source = make(EnablePartitioning=partitioned == "source")
    target = make(EnablePartitioning=partitioned == "target")
    send(connection, source, 40)
    result = run("move", source, target, "--filter", "n < 30")
    assert result.exit_code == 0, result.output
    assert "At least once" in result.stdout
    assert numbers(there(run, target)) == [*range(30)]
    assert numbers(there(run, source)) == [*range(30, 40)]
    assert run("purge", source, "--yes").stdout == f"10 messages removed from {source}\n"


def test_a_move_to_itself_ends(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make()
    send(connection, queue, 20)
    result = run("move", queue, queue, "--set", "seen:=true")
    assert (result.exit_code, len(there(run, queue))) == (0, 20), result.output
    assert all(each["properties"]["seen"] for each in there(run, queue))
    unchanged = run("move", queue, queue.upper())
    assert (unchanged.exit_code, "is the source and the target" in unchanged.stderr) == (2, True)


def test_another_namespace(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source = make()
    send(connection, source, 20)
    with ServedBroker() as other:
        text = other.connection_string
        there_administration = Administration.of(ConnectionString.parse(text))
        there_administration.create("queue", "plain", {})
        there_administration.create("queue", "detects", {"RequiresDuplicateDetection": True})
        plain = run("move", source, "plain", "--to-connection-string", text, "--count", "10")
        assert plain.exit_code == 0, plain.output
        assert "At least once" in plain.stdout
        detects = run("move", source, "detects", "--to-connection-string", text)
        assert detects.exit_code == 0, detects.output
        assert "Exactly once: each message is sent, then removed." in detects.stdout
        assert there(run, source) == []
        found = [there(run, each, "--connection-string", text) for each in ("plain", "detects")]
        assert [*map(len, found)] == [10, 10]
        nowhere = run("move", source, "nowhere", "--to-connection-string", text)
        assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (1, 1), nowhere.stderr
        assert "there is no queue or topic 'nowhere' here" in nowhere.stderr


def test_what_the_target_refuses_stays(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source, target = make(), make(RequiresSession=True)
    send(connection, source, 3)
    refused = run("move", source, target)
    assert refused.exit_code == 1
    assert "sequence number 1" in refused.stderr
    assert "session" in refused.stderr
    assert "0 messages moved. Go on with: peeklock move --resume" in refused.stderr
    assert len(take(connection, source, 9)[1]) == 3, "released"


@pytest.mark.parametrize(
    "words", [("move", "nope"), ("purge", "nope", "--yes"), ("dead-letters", "drop", "nope", "--yes")]
)
def test_an_unknown_source_is_named(
    run: Callable[..., Result], make: Callable[..., str], words: tuple[str, ...]
) -> None:
    result = run(*words, make()) if words[0] == "move" else run(*words)
    assert result.exit_code == 1
    assert "there is no queue or subscription 'nope' here" in result.stderr


def test_a_checkpoint_of_another_command_or_namespace_is_refused(
    run: Callable[..., Result], served: ServedBroker, tmp_path: Path
) -> None:
    def refused(plan: Plan | None, text: str = "", *further: str) -> str:
        file = tmp_path / "job.json"
        file.write_text(text or json.dumps(Checkpoint(plan or plans, {}).to_json()))
        result = run("move", "--resume", file, *further)
        assert result.exit_code == 2, result.output
        return result.stderr

    here = f"localhost:{served.port}"
    plans = Plan(work="move", namespace=here, source="a", target_namespace=here, target="b")
    assert "of a resubmit, not of a move" in refused(
        Plan(work="resubmit", namespace=here, source="a", target_namespace=here, target="b")
    )
    elsewhere = Plan(work="move", namespace="x:1", source="a", target_namespace=here, target="b")
    assert f"of x:1, not of {here}" in refused(elsewhere)
    assert "it is not JSON" in refused(None, "{")
    assert "its version is 2" in refused(None, '{"version": 2}')
    assert "it is damaged" in refused(None, '{"version": 1, "plan": {}}')
    assert "--resume goes with options of connections alone" in refused(plans, "", "--rate", "1")
    assert "messages cannot have this" in run("move", "a", "b", "--set", f"n:={1 << 70}").stderr
    assert "SOURCE and TARGET" in run("move", "a").stderr
    assert "not both" in run("move", "a", "b", "--to-connection", "x", "--to-connection-string", "y").stderr


# Purge


def in_all_states(connection: BlockingConnection, path: str, **further: Any) -> None:
    """Leave 4 active, 3 deferred and 2 scheduled messages."""
    send(connection, path, 7, **further)
    session = further.get("group_id")
    receiver = connection.receiver(path, ReceiveMode.PEEK_LOCK, session)
    for delivery in receiver.receive(3, 1):
        receiver.settle(delivery, DEFER)
    receiver.flush()
    receiver.close()
    payload = encode_message(
        message_annotations={"x-opt-scheduled-enqueue-time": _far()},
        properties=Properties(message_id="later", group_id=session),
        data=b"later",
    )
    scheduled = {"message-id": "later", "message": payload}
    if session is not None:
        scheduled["session-id"] = session
    connection.management(path).request(
        "com.microsoft:schedule-message", {"messages": [scheduled, scheduled]}
    )


def _far() -> Any:
    from peeklock.amqp.types import Timestamp

    return Timestamp(4_000_000_000_000)


@pytest.mark.parametrize("session", [None, "a"])
def test_all_states_are_purged(
    run: Callable[..., Result],
    connection: BlockingConnection,
    make: Callable[..., str],
    session: str | None,
) -> None:
    queue = make(RequiresSession=session is not None)
    in_all_states(connection, queue, group_id=session)
    counted = run("purge", queue, "--dry-run")
    assert counted.stdout == f"would remove 9 messages (4 active, 3 deferred, 2 scheduled) from {queue}\n"
    deferred = run("purge", queue, "--state", "deferred", "--yes")
    assert (deferred.exit_code, deferred.output) == (0, f"3 messages removed from {queue}\n")
    assert [each["state"] for each in there(run, queue)] == ["active"] * 4 + ["scheduled"] * 2
    some = run("purge", queue, "--filter", "n > 4", "--yes")
    assert some.stdout == f"2 messages removed from {queue}\n"
    rest = run("purge", queue, "--yes")
    assert (rest.exit_code, rest.stdout) == (0, f"4 messages removed from {queue}\n")
    assert there(run, queue) == []
    assert run("purge", queue).stdout == f"0 messages removed from {queue}\n"


def test_what_others_hold_is_not_purged(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make()
    in_all_states(connection, queue)
    receiver, _ = take(connection, queue, 1)
    [number, *_] = [each["sequenceNumber"] for each in there(run, queue, "--state", "deferred")]
    connection.management(queue).request(
        "com.microsoft:receive-by-sequence-number",
        {"sequence-numbers": Array(Long, [number]), "receiver-settle-mode": 1},
    )
    result = run("purge", queue, "--yes")
    assert result.exit_code == 1
    assert "2 messages left: other receivers hold them" in result.stderr
    assert "7 messages removed." in result.stderr
    receiver.close()
    assert len(there(run, queue)) == 2


def test_it_does_not_remove_without_being_asked(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make()
    send(connection, queue, 2)
    refused = run("purge", queue)
    assert (refused.exit_code, "without --yes" in refused.stderr) == (1, True)
    assert "The expression" not in refused.output
    bad = run("purge", queue, "--filter", "n >", "--yes")
    assert (bad.exit_code, "--filter" in bad.stderr) == (2, True)
    assert len(there(run, queue)) == 2


# Dead letters


def test_groups(run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]) -> None:
    queue = make()
    send(connection, queue, 9)
    kill(connection, queue, 6)
    kill(connection, queue, 3, "worse\x1b")
    table = run("dead-letters", "groups", queue)
    head, first, second = table.stdout.splitlines()
    assert head.split()[0::5] == ["COUNT", "EXAMPLE"]
    assert (first.split()[0], first.split()[-2:]) == ("6", ["1", "bad"])
    assert second.endswith(r"worse\x1b")
    rows = run("dead-letters", "groups", queue, "--by", "json:$.a.b", "--json").stdout.splitlines()
    assert [(row["group"], row["count"], row["example"]) for row in map(json.loads, rows)] == [
        ("0", 3, 1),
        ("1", 3, 2),
        ("2", 3, 3),
    ]
    [none] = run("dead-letters", "groups", queue, "--by", "property:no", "--json").stdout.splitlines()
    assert json.loads(none)["group"] is None
    some = run("dead-letters", "groups", queue, "--by", "property:kind", "--reason", "bad", "--json")
    assert [json.loads(row)["count"] for row in some.stdout.splitlines()] == [3, 3]
    bad = run("dead-letters", "groups", queue, "--by", "kind")
    assert (bad.exit_code, "'kind' is not reason, property:NAME" in bad.stderr) == (2, True)


def test_one_is_shown(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make()
    send(connection, queue, 3)
    kill(connection, queue, 3)
    shown = run("dead-letters", "show", queue, "2")
    assert shown.exit_code == 0
    assert "DeadLetterReason            bad" in shown.stdout
    missing = run("dead-letters", "show", queue, "9")
    assert (missing.exit_code, missing.stderr) == (1, f"peeklock: {queue} has no dead letter 9.\n")
    listed = run("dead-letters", "list", queue, "--filter", "n > 0", "--count", "1", "--json")
    assert [json.loads(row)["properties"]["n"] for row in listed.stdout.splitlines()] == [1]


def test_they_are_sent_again_and_marked(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make()
    send(connection, queue, 10)
    kill(connection, queue, 5)
    kill(connection, queue, 3, "other")
    result = run("dead-letters", "resubmit", queue, "--reason", "bad", "--count", "4")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"4 messages sent to {queue}"
    back = [each for each in there(run, queue) if each["properties"]["n"] < 5]
    assert back[0]["properties"] == {
        "n": 0,
        "kind": "even",
        "peeklock-resubmits": 1,
        "peeklock-resubmitted-from": queue,
    }
    assert back[0]["messageId"] == "id-0"
    run("dead-letters", "resubmit", queue, "--by", "property:kind", "--group", "odd", "--as-is")
    assert numbers(there(run, queue, "--dead-letter")) == [4, 6]
    odd = [each for each in there(run, queue) if each["properties"]["n"] in (5, 7)]
    assert [[*each["properties"]] for each in odd] == [["n", "kind"]] * 2
    kill(connection, queue, 10)
    run("dead-letters", "resubmit", queue, "--filter", "n = 0")
    [again] = there(run, queue)
    assert again["properties"]["peeklock-resubmits"] == 2
    dropped = run("dead-letters", "drop", queue, "--reason", "other", "--yes")
    assert dropped.stdout == f"1 message removed from {queue}/$DeadLetterQueue\n"
    assert "without --yes" in run("dead-letters", "drop", queue).stderr


def test_those_of_a_subscription_go_to_its_topic(
    run: Callable[..., Result],
    connection: BlockingConnection,
    administration: Administration,
    make: Callable[..., str],
) -> None:
    administration.create("topic", "news", {})
    for name in ("sport", "all"):
        administration.create("subscription", f"news/Subscriptions/{name}", {})
    send(connection, "news", 2)
    kill(connection, "news/Subscriptions/sport", 2)
    result = run("dead-letters", "resubmit", "news/Subscriptions/sport", "--count", "1")
    assert result.exit_code == 0, result.output
    assert "1 message sent to news" in result.stdout
    assert len(there(run, "news/Subscriptions/all")) == 3
    elsewhere = make()
    result = run("dead-letters", "resubmit", "news/Subscriptions/sport", "--to-entity", elsewhere)
    [one] = there(run, elsewhere)
    assert one["properties"]["peeklock-resubmitted-from"] == "news/Subscriptions/sport"


def test_a_queue_that_requires_sessions_gets_its_dead_letters_back(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    queue = make(RequiresSession=True)
    send(connection, queue, 3, group_id="a")
    receiver = connection.receiver(queue, ReceiveMode.PEEK_LOCK, "a")
    for delivery in receiver.receive(3, 1):
        receiver.settle(delivery, dead_letter("bad"))
    receiver.flush()
    receiver.close()
    result = run("dead-letters", "resubmit", queue)
    assert result.exit_code == 0, result.output
    assert [each["sessionId"] for each in there(run, queue)] == ["a"] * 3


def test_bodies_and_unknown_parts_stay_bit_for_bit(
    run: Callable[..., Result], connection: BlockingConnection, make: Callable[..., str]
) -> None:
    source, target = make(), make()
    payload = encode_message(
        message_annotations={"x-opt-partition-key": "k", "x-own": 1},
        properties=Properties(message_id=7),
        value={"a": [1, None]},
    )
    sender = connection.sender(source)
    sender.send(payload)
    sender.flush()
    assert run("move", source, target, "--set-session", "s").exit_code == 0
    _, [found] = take(connection, target, 1)
    sections = scan(found.payload)
    assert sections.decode_body() == [("value", {"a": [1, None]})]
    annotations = sections.decode_message_annotations()
    assert (annotations["x-own"], annotations["x-opt-partition-key"]) == (1, "s")
    assert sections.decode_properties().message_id == 7
