"""The configuration file: what it may hold, what each mistake is called, and what it asks of the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.commands import CreateQueue, UpdateQueue
from peeklock.broker.descriptions import UNLIMITED_MS, EntityStatus, QueueDescription
from peeklock.broker.effects import EntityFound, QueueView
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import BASIC, STANDARD
from peeklock.server.config import FILE_BYTES_MAX, Config, ConfigError, parse_config, read_config, reconcile

REPLY_TO = (0, 0, 0, 1)

SAMPLE = """
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "tenant/queue.2",
              "ForwardTo": "",
              "LockDuration": "PT30S",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": true,
              "RequiresSession": true
            }
          },
          { "Name": "tenant/queue.2" }
        ],
        "Topics": []
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""

BARE = {"Name": "ns", "Queues": [{"Name": "orders"}]}
QUEUE = "UserConfig.Namespaces[0].Queues[0]"


def with_namespaces(*namespaces: Any, **more: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": list(namespaces), **more}})


def with_queues(*queues: Any) -> str:
    return with_namespaces({"Name": "ns", "Queues": list(queues)})


def with_property(key: str, value: Any) -> str:
    return with_queues({"Name": "orders", "Properties": {key: value}})


def read(text: str) -> Config:
    return parse_config(text.encode())


def view(**settings: Any) -> QueueView:
    return QueueView(1, QueueDescription(**settings), 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_emulator_s_file_is_read_whole() -> None:
    """Req: A-02."""
    config = read(SAMPLE)
    assert config.namespace == "sbemulatorns"
    assert [queue.description for queue in config.queues] == [
        QueueDescription(
            "queue.1",
            lock_duration_ms=30_000,
            default_ttl_ms=3_600_000,
            duplicate_window_ms=20_000,
            max_delivery_count=3,
            dead_lettering_on_expiration=True,
            requires_duplicate_detection=True,
            requires_session=True,
            forward_dead_lettered_to="tenant/queue.2",
        ),
        QueueDescription("tenant/queue.2"),
    ]


def test_settings_beyond_the_emulator_s_go_by_their_names_in_the_administration() -> None:
    """Req: A-02, A-03, A-04."""
    properties = {
        "AutoDeleteOnIdle": "PT10M",
        "EnablePartitioning": True,
        "MaxMessageSizeInKilobytes": 2048,
        "MaxSizeInMegabytes": 2048,
        "Status": "ReceiveDisabled",
    }
    assert read(with_queues({"Name": "orders", "Properties": properties})).queues[0].description == (
        QueueDescription(
            "orders",
            auto_delete_on_idle_ms=600_000,
            enable_partitioning=True,
            max_message_size_kb=2048,
            max_size_mb=2048,
            status=EntityStatus.RECEIVE_DISABLED,
        )
    )


def test_a_file_is_read_from_disk_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Req: A-02."""
    file = tmp_path / "Config.json"
    file.write_bytes(b"\xef\xbb\xbf" + SAMPLE.encode())
    assert read_config(file) == read(SAMPLE)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_config(tmp_path / "Config.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_a_setting_left_out_has_the_service_s_default() -> None:
    """Req: A-02. The emulator's own defaults (3 deliveries, 1 hour) are shorter: differs on purpose."""
    description = read(with_queues({"Name": "orders", "Properties": {}})).queues[0].description
    assert description.max_delivery_count == 10
    assert description.default_ttl_ms == UNLIMITED_MS


WRONG = [
    ("", "line 1 column 1: not JSON: Expecting value"),
    ('{"UserConfig": {,}}', "line 1 column 17: not JSON: Expecting property name enclosed in double quotes"),
    ('{"UserConfig": NaN}', "not JSON: NaN is no JSON value"),
    ("[" * 100_000, "not JSON: nested too deeply"),
    ("[]", "the file: a list is not an object in braces"),
    ('"text"', "the file: 'text' is not an object in braces"),
    ("{}", "UserConfig: missing"),
    ('{"userConfig": {}}', "userConfig: unknown key; did you mean UserConfig?\nUserConfig: missing"),
    ('{"UserConfig": []}', "UserConfig: a list is not an object in braces"),
    ('{"UserConfig": {}}', "UserConfig.Namespaces: missing"),
    ('{"UserConfig": {"Namespaces": {}}}', "UserConfig.Namespaces: an object is not a list in brackets"),
    (with_namespaces(), "UserConfig.Namespaces: holds 0 namespaces; exactly one is served"),
    (with_namespaces(BARE, BARE), "UserConfig.Namespaces: holds 2 namespaces; exactly one is served"),
    (with_namespaces(7), "UserConfig.Namespaces[0]: 7 is not an object in braces"),
    (with_namespaces({}), "UserConfig.Namespaces[0].Name: missing"),
    (
        with_namespaces({"Name": ""}),
        "UserConfig.Namespaces[0].Name: '' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "the first and the last a letter or digit",
    ),
    (
        with_namespaces({"Name": "ns", "Queue": []}),
        "UserConfig.Namespaces[0].Queue: unknown key; did you mean Queues?",
    ),
    (
        with_namespaces({"Name": "ns", "EventHubs": []}),
        "UserConfig.Namespaces[0].EventHubs: unknown key; known here: Name, Queues, Topics",
    ),
    (
        with_namespaces({"Name": "ns", "odd key\n": 1}),
        'UserConfig.Namespaces[0]."odd key\\n": unknown key; known here: Name, Queues, Topics',
    ),
    (
        with_namespaces({"Name": "ns", "Queues": {}}),
        "UserConfig.Namespaces[0].Queues: an object is not a list in brackets",
    ),
    (
        with_namespaces({"Name": "ns", "Topics": [{"Name": "news", "Subscriptions": []}]}),
        "UserConfig.Namespaces[0].Topics: topics are not offered yet: leave the list empty",
    ),
    (with_queues(None), f"{QUEUE}: null is not an object in braces"),
    (with_queues({"Properties": {}}), f"{QUEUE}.Name: missing"),
    (
        with_queues({"Name": "orders", "Propertys": {}}),
        f"{QUEUE}.Propertys: unknown key; did you mean Properties?",
    ),
    (
        with_queues({"Name": "orders", "Properties": []}),
        f"{QUEUE}.Properties: a list is not an object in braces",
    ),
    (
        with_queues({"Name": "or ders"}),
        f"{QUEUE}.Name: 'or ders' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "the first and the last a letter or digit",
    ),
    (
        with_queues({"Name": "o" * 261}),
        f"{QUEUE}.Name: '{'o' * 60}...' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "the first and the last a letter or digit",
    ),
    (
        with_queues({"Name": "orders"}, {"Name": "ORDERS"}),
        f"UserConfig.Namespaces[0].Queues[1].Name: 'ORDERS' is the name of {QUEUE} already",
    ),
    (
        with_queues({"Name": "a"}, {"Name": "b", "Properties": {"LockDuration": "P1X"}}),
        "UserConfig.Namespaces[0].Queues[1].Properties.LockDuration: "
        "'P1X' is not an ISO 8601 duration such as PT1M",
    ),
    (
        with_property("LockDuraton", "PT1M"),
        f"{QUEUE}.Properties.LockDuraton: unknown key; did you mean LockDuration?",
    ),
    (
        with_property("LockDuration", 60),
        f"{QUEUE}.Properties.LockDuration: 60 is not an ISO 8601 duration such as PT1M, in quotation marks",
    ),
    (
        with_property("DefaultMessageTimeToLive", "P1M"),
        f"{QUEUE}.Properties.DefaultMessageTimeToLive: 'P1M' is not an ISO 8601 duration such as PT1M",
    ),
    (
        with_property("DuplicateDetectionHistoryTimeWindow", None),
        f"{QUEUE}.Properties.DuplicateDetectionHistoryTimeWindow: "
        "null is not an ISO 8601 duration such as PT1M, in quotation marks",
    ),
    (
        with_property("MaxDeliveryCount", "3"),
        f"{QUEUE}.Properties.MaxDeliveryCount: '3' is not a whole number",
    ),
    (
        with_property("MaxDeliveryCount", 3.0),
        f"{QUEUE}.Properties.MaxDeliveryCount: 3.0 is not a whole number",
    ),
    (
        with_property("MaxDeliveryCount", True),
        f"{QUEUE}.Properties.MaxDeliveryCount: true is not a whole number",
    ),
    (
        with_property("DeadLetteringOnMessageExpiration", "true"),
        f"{QUEUE}.Properties.DeadLetteringOnMessageExpiration: 'true' is not true or false",
    ),
    (
        with_property("RequiresDuplicateDetection", 1),
        f"{QUEUE}.Properties.RequiresDuplicateDetection: 1 is not true or false",
    ),
    (
        with_property("ForwardTo", "-other"),
        f"{QUEUE}.Properties.ForwardTo: '-other' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "the first and the last a letter or digit",
    ),
    (
        with_property("ForwardDeadLetteredMessagesTo", None),
        f"{QUEUE}.Properties.ForwardDeadLetteredMessagesTo: "
        'null is not a name in quotation marks ("" for none)',
    ),
    (
        with_property("Status", "active"),
        f"{QUEUE}.Properties.Status: 'active' is none of "
        "'Active', 'Disabled', 'SendDisabled', 'ReceiveDisabled'",
    ),
    (
        with_namespaces(BARE, Logging={"Type": "Syslog"}),
        "UserConfig.Logging.Type: 'Syslog' is none of 'File', 'Console', 'File,Console', 'Console,File'",
    ),
    (with_namespaces(BARE, Logging={}), "UserConfig.Logging.Type: missing"),
    (with_namespaces(BARE, Logging="File"), "UserConfig.Logging: 'File' is not an object in braces"),
    (
        '{"UserConfig": {"Namespaces": [{"Name": "ns", "Name": "ns"}]}}',
        "UserConfig.Namespaces[0].Name: given more than once",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_each_mistake_is_told_by_its_path(text: str, message: str) -> None:
    """Req: A-02. Nothing wrong or unknown is passed over: the broker does not start with such a file."""
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert str(refused.value) == message


def test_bytes_that_are_not_utf_8_are_told_by_their_place() -> None:
    with pytest.raises(ConfigError, match="byte 1: not UTF-8"):
        parse_config(b"{\xff}")


def test_all_mistakes_are_told_at_once() -> None:
    """Req: A-02."""
    with pytest.raises(ConfigError) as refused:
        read(with_queues({"Name": "a", "Properties": {"LockDuration": 1, "Speed": 2}}, {"Name": "-"}))
    assert [problem.split(": ")[0] for problem in refused.value.problems] == [
        f"{QUEUE}.Properties.Speed",
        f"{QUEUE}.Properties.LockDuration",
        "UserConfig.Namespaces[0].Queues[1].Name",
    ]


def test_a_file_beyond_the_size_limit_is_not_parsed() -> None:
    parse_config(SAMPLE.encode().ljust(FILE_BYTES_MAX))
    with pytest.raises(ConfigError, match=f"is larger than {FILE_BYTES_MAX} bytes"):
        parse_config(SAMPLE.encode().ljust(FILE_BYTES_MAX + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["UserConfig", "Namespaces", "Name", "Queues", "Properties", "LockDuration", "Type", "é"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_gives_a_configuration_or_its_own_error(value: Any) -> None:
    try:
        config = read(json.dumps(value))
    except ConfigError:
        return
    assert config.namespace


# What the file asks of the broker


def test_missing_queues_are_created() -> None:
    """Req: A-02."""
    steps = reconcile(read(SAMPLE), [], STANDARD)
    assert [step(REPLY_TO) for step in steps] == [
        CreateQueue(queue.description, REPLY_TO) for queue in reversed(read(SAMPLE).queues)
    ]
    assert [step.path for step in steps] == [f"UserConfig.Namespaces[0].Queues[{n}]" for n in (1, 0)]


def test_a_queue_that_agrees_is_left_alone_whatever_its_name_s_case() -> None:
    """Req: A-02, L-12. An update would cost the held locks."""
    old = view(name="Orders", max_delivery_count=5)
    assert reconcile(read(with_property("MaxDeliveryCount", 5)), [old], STANDARD) == []


def test_a_difference_is_applied_and_all_else_stays() -> None:
    """Req: A-02."""
    old = view(
        name="Orders",
        max_delivery_count=5,
        lock_duration_ms=5_000,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="made by hand",
    )
    steps = reconcile(read(with_property("MaxDeliveryCount", 7)), [old], STANDARD)
    assert [step(REPLY_TO) for step in steps] == [
        UpdateQueue(
            QueueDescription(
                "Orders",
                max_delivery_count=7,
                lock_duration_ms=5_000,
                status=EntityStatus.SEND_DISABLED,
                user_metadata="made by hand",
            ),
            REPLY_TO,
        )
    ]


def test_a_difference_in_what_cannot_be_changed_refuses_the_start() -> None:
    """Req: A-02."""
    with pytest.raises(ConfigError) as refused:
        reconcile(read(with_property("RequiresDuplicateDetection", True)), [view(name="orders")], STANDARD)
    assert str(refused.value) == (
        f"{QUEUE}.Properties.RequiresDuplicateDetection: is false on the existing queue 'orders' and "
        "cannot be changed; correct the file, or delete the queue first"
    )
    for key, field in (
        ("RequiresSession", "requires_session"),
        ("EnablePartitioning", "enable_partitioning"),
    ):
        with pytest.raises(ConfigError, match=f"{key}: is true on the existing queue"):
            reconcile(read(with_property(key, False)), [view(name="orders", **{field: True})], STANDARD)


# Forwards


def forwarding(*forwards: tuple[str, str | None, str | None]) -> Config:
    """Name, ForwardTo and ForwardDeadLetteredMessagesTo of each queue; None = not in the file."""
    queues = []
    for name, to, dead_to in forwards:
        properties = {"ForwardTo": to, "ForwardDeadLetteredMessagesTo": dead_to}
        given_ones = {key: target for key, target in properties.items() if target is not None}
        queues.append({"Name": name, "Properties": given_ones})
    return read(with_queues(*queues))


def order(config: Config, *existing: QueueView) -> list[str]:
    return [step.description.name for step in reconcile(config, existing, STANDARD)]


def test_a_queue_may_forward_to_one_below_it_in_the_file() -> None:
    """Req: A-02, F-01. The broker takes a forward only to a queue that is there."""
    config = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert order(config) == ["d", "c", "b", "a"]
    assert order(config, view(name="c", forward_dead_lettered_to="d")) == ["d", "b", "a"]


def test_a_namespace_made_by_the_file_agrees_with_it_at_the_next_start() -> None:
    """Req: A-02, F-01. The broker takes each command in its turn, and nothing is left to do."""
    namespace = Namespace(limits=STANDARD, tokens=bytes, digest_key=b"")

    def start(config: Config) -> int:
        steps = reconcile(config, namespace.queue_views(), STANDARD)
        for step in steps:
            (answer,) = namespace.apply(step(REPLY_TO), now_ms=1)[1]
            assert isinstance(answer, EntityFound)
        return len(steps)

    chain = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert start(chain) == 4
    assert start(chain) == 0
    turned = forwarding(("a", "", ""), ("b", "a", None), ("c", "b", ""), ("d", "c", None))
    assert start(turned) == 4
    assert start(turned) == 0


def test_turning_a_forward_round_closes_no_circle_on_the_way() -> None:
    """Req: A-02, F-01."""
    old = [view(name="a", forward_to="b"), view(name="b")]
    assert order(forwarding(("b", "a", None), ("a", "", None)), *old) == ["a", "b"]


def test_a_forward_to_a_queue_from_before_needs_no_entry_in_the_file() -> None:
    """Req: A-02, F-01."""
    assert order(forwarding(("a", "Kept", None)), view(name="kept")) == ["a"]


def test_a_forward_whose_target_was_deleted_since_may_stay_as_it_is() -> None:
    """Req: A-02. The file still says what is so: nothing is to be done."""
    assert order(forwarding(("a", "gone", None)), view(name="a", forward_to="gone")) == []


@pytest.mark.parametrize(
    ("forwards", "existing", "problems"),
    [
        (
            [("a", "gone", None), ("b", None, "lost")],
            [],
            [
                "Queues[0].Properties.ForwardTo: there is no queue 'gone', in the file or from before",
                "Queues[1].Properties.ForwardDeadLetteredMessagesTo: there is no queue 'lost', "
                "in the file or from before",
            ],
        ),
        ([("a", "A", None)], [], ["Queues[0].Properties.ForwardTo: forwards to 'A' and so in a circle"]),
        (
            [("a", None, "b"), ("b", "a", None)],
            [],
            [
                "Queues[0].Properties.ForwardDeadLetteredMessagesTo: forwards to 'b' and so in a circle",
                "Queues[1].Properties.ForwardTo: forwards to 'a' and so in a circle",
            ],
        ),
        (
            [("b", "a", None)],
            [view(name="a", forward_to="b"), view(name="b")],
            ["Queues[0].Properties.ForwardTo: forwards to 'a' and so in a circle"],
        ),
    ],
)
def test_a_forward_that_leads_nowhere_or_in_a_circle_is_told_by_its_path(
    forwards: list[Any], existing: list[QueueView], problems: list[str]
) -> None:
    """Req: A-02, F-01."""
    with pytest.raises(ConfigError) as refused:
        order(forwarding(*forwards), *existing)
    assert list(refused.value.problems) == [f"UserConfig.Namespaces[0].{problem}" for problem in problems]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
)
def test_no_command_comes_before_its_targets_or_closes_a_circle(
    before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    """Req: A-02, F-01. From any forwards without circles to any others, in a file in any order."""
    old = {str(source): str(target) for source, target in before if source < target}
    new = {str(source): str(target) for source, target in after if source > target}
    names = sorted({*new, *new.values()})
    exist = {*old, *old.values()}
    config = forwarding(*((name, new.get(name, ""), None) for name in names))
    steps = reconcile(config, [view(name=name, forward_to=old.get(name)) for name in exist], STANDARD)
    now = dict(old)
    for step in steps:
        name, target = step.description.name, step.description.forward_to
        assert step.exists == (name in exist)
        assert target is None or target in exist
        exist.add(name)
        now.pop(name, None)
        if target is not None:
            now[name] = target
        while target is not None:
            assert target != name
            target = now.get(target)


def test_queues_that_the_file_does_not_name_stay() -> None:
    """Req: A-02."""
    assert reconcile(read(with_namespaces({"Name": "ns"})), [view(name="kept")], STANDARD) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("LockDuration", "P25D", "LockDuration of 'orders' is 2160000000 ms, allowed are 5000 to 300000 ms"),
        ("LockDuration", "PT4S", "LockDuration of 'orders' is 4000 ms, allowed are 5000 to 300000 ms"),
        ("MaxDeliveryCount", 0, "MaxDeliveryCount of 'orders' is 0, allowed are 1 to 2000"),
        (
            "DuplicateDetectionHistoryTimeWindow",
            "PT19S",
            "DuplicateDetectionHistoryTimeWindow of 'orders' is 19000 ms, allowed are 20000 to 604800000 ms",
        ),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_value_out_of_range_is_told_by_its_path_before_anything_is_run(
    key: str, value: Any, reason: str, exists: bool
) -> None:
    """Req: A-02, A-05."""
    config = read(with_queues({"Name": "orders", "Properties": {key: value}}, {"Name": "other"}))
    with pytest.raises(ConfigError) as refused:
        reconcile(config, [view(name="orders")] if exists else [], STANDARD)
    assert str(refused.value) == f"{QUEUE}.Properties: {reason}"


def test_what_the_tier_makes_of_a_value_is_no_difference_at_the_next_start() -> None:
    """Req: A-02, A-05. In the basic tier "unlimited" means 14 days."""
    config = read(with_property("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S"))
    (created,) = reconcile(config, [], BASIC)
    assert created.description.default_ttl_ms == 14 * 86_400_000
    assert reconcile(config, [QueueView(1, created.description, 0, 0, 0, 0, 0, 0, 0, 0)], BASIC) == []
