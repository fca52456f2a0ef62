"""The configuration file: what it may hold, what each mistake is called, and how it is written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.descriptions import UNLIMITED_MS, EntityStatus, QueueDescription
from peeklock.server.config import (
    FILE_BYTES_MAX,
    QUEUE_PROPERTIES,
    Config,
    ConfigError,
    format_config,
    parse_config,
    read_config,
)

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
        "EnableBatchedOperations": False,
        "EnableExpress": True,
        "EnablePartitioning": True,
        "MaxMessageSizeInKilobytes": 2048,
        "MaxSizeInMegabytes": 2048,
        "Status": "ReceiveDisabled",
        "UserMetadata": "made by hand",
    }
    assert read(with_queues({"Name": "orders", "Properties": properties})).queues[0].description == (
        QueueDescription(
            "orders",
            auto_delete_on_idle_ms=600_000,
            enable_batched_operations=False,
            enable_express=True,
            enable_partitioning=True,
            max_message_size_kb=2048,
            max_size_mb=2048,
            status=EntityStatus.RECEIVE_DISABLED,
            user_metadata="made by hand",
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
        with_property("UserMetadata", 7),
        f'{QUEUE}.Properties.UserMetadata: 7 is not a text in quotation marks ("" for none)',
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


# Writing


def test_a_file_that_is_written_holds_what_somebody_has_set() -> None:
    """Req: A-02. And MaxDeliveryCount, which the emulator takes for 3 when it is left out."""
    assert format_config(
        [
            QueueDescription("orders", lock_duration_ms=90_500, forward_to="Archive", max_delivery_count=3),
            QueueDescription("Archive", status=EntityStatus.SEND_DISABLED, user_metadata="für später"),
        ]
    ) == (
        """{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "Archive",
            "Properties": {
              "MaxDeliveryCount": 10,
              "Status": "SendDisabled",
              "UserMetadata": "für später"
            }
          },
          {
            "Name": "orders",
            "Properties": {
              "ForwardTo": "Archive",
              "LockDuration": "PT1M30.5S",
              "MaxDeliveryCount": 3
            }
          }
        ],
        "Topics": []
      }
    ],
    "Logging": {
      "Type": "Console"
    }
  }
}
"""
    )


def test_every_setting_of_a_queue_has_its_place_in_the_file() -> None:
    """Req: A-02. Else a queue would come back with less than it had."""
    in_file = {field for field, _ in QUEUE_PROPERTIES.values()}
    assert in_file == {field.name for field in dataclasses.fields(QueueDescription)} - {"name"}


EVERY_SETTING = QueueDescription(
    "tenant/Queue.1",
    lock_duration_ms=5_001,
    max_size_mb=5120,
    requires_duplicate_detection=True,
    requires_session=True,
    default_ttl_ms=1_234_567_890_123,
    dead_lettering_on_expiration=True,
    duplicate_window_ms=20_000,
    max_delivery_count=2_000,
    enable_batched_operations=False,
    status=EntityStatus.DISABLED,
    forward_to="a",
    forward_dead_lettered_to="B",
    user_metadata='quoted "text", \\, \n and \U0001f600',
    auto_delete_on_idle_ms=300_000,
    enable_partitioning=True,
    enable_express=True,
    max_message_size_kb=102_400,
)


def test_what_is_written_is_read_as_it_was() -> None:
    """Req: A-02."""
    default = QueueDescription("z")
    for field in dataclasses.fields(QueueDescription):
        assert getattr(EVERY_SETTING, field.name) != getattr(default, field.name)
    config = parse_config(format_config([default, EVERY_SETTING]).encode())
    assert [queue.description for queue in config.queues] == [EVERY_SETTING, default]


def test_a_namespace_without_queues_is_written_and_read() -> None:
    """Req: A-02."""
    assert parse_config(format_config([]).encode()) == Config("sbemulatorns", ())


def test_as_many_queues_as_the_service_has_fit_into_a_file() -> None:
    """Req: A-02, A-05. With the longest names and metadata."""
    queue = dataclasses.replace(
        EVERY_SETTING,
        name="n" * 260,
        forward_to="t" * 260,
        forward_dead_lettered_to="d" * 260,
        user_metadata="\U0001f600" * 1024,
    )
    one, two = (len(format_config([queue] * count).encode()) for count in (1, 2))
    assert one + 9_999 * (two - one) <= FILE_BYTES_MAX
