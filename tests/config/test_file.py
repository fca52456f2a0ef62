"""The configuration file: what it may hold, what each mistake is called, and how it is written."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.descriptions import (
    GIVEN_FORWARDS,
    UNLIMITED_MS,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.config.file import (
    EMULATOR_DEFAULTS,
    FILE_BYTES_MAX,
    Config,
    format_config,
    parse_config,
    read_config,
)
from peeklock.config.form import ConfigError
from peeklock.config.settings import PROPERTIES
from peeklock.rules.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)

SAMPLE = (Path(__file__).parent / "emulator_config.json").read_bytes()
"""What the emulator comes with, told anew: one queue, one topic, four subscriptions, comments."""

BARE = {"Name": "ns", "Queues": [{"Name": "orders"}]}
QUEUE = "UserConfig.Namespaces[0].Queues[0]"
TOPIC = "UserConfig.Namespaces[0].Topics[0]"
SUBSCRIPTION = f"{TOPIC}.Subscriptions[0]"
RULE = f"{SUBSCRIPTION}.Rules[0]"


def with_namespaces(*namespaces: Any, **more: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": list(namespaces), **more}})


def with_queues(*queues: Any) -> str:
    return with_namespaces({"Name": "ns", "Queues": list(queues)})


def with_property(key: str, value: Any) -> str:
    return with_queues({"Name": "orders", "Properties": {key: value}})


def with_topics(*topics: Any) -> str:
    return with_namespaces({"Name": "ns", "Topics": list(topics)})


def with_subscriptions(*subscriptions: Any) -> str:
    return with_topics({"Name": "news", "Subscriptions": list(subscriptions)})


def with_rules(*rules: Any) -> str:
    return with_subscriptions({"Name": "all", "Rules": list(rules)})


def with_rule(**properties: Any) -> str:
    return with_rules({"Name": "r", "Properties": properties})


def read(text: str) -> Config:
    [config] = parse_config(text.encode())
    return config


def rules_of(config: Config) -> list[RuleDescription]:
    return [rule.rule for entity in config.entities for rule in entity.rules or ()]


def test_the_emulator_s_file_is_read_whole() -> None:
    """Req: A-02."""
    [config] = parse_config(SAMPLE)
    hour_ms, window_ms = 3_600_000, 20_000
    subscriptions = [
        SubscriptionDescription(
            "topic.1", f"subscription.{number}", default_ttl_ms=hour_ms, max_delivery_count=3
        )
        for number in (1, 2, 3, 4)
    ]
    assert config.namespace == "sbemulatorns"
    assert [entity.description for entity in config.entities] == [
        QueueDescription(
            "queue.1", default_ttl_ms=hour_ms, duplicate_window_ms=window_ms, max_delivery_count=3
        ),
        TopicDescription("topic.1", default_ttl_ms=hour_ms, duplicate_window_ms=window_ms),
        *subscriptions,
    ]
    assert [entity.rules and [rule.rule for rule in entity.rules] for entity in config.entities] == [
        None,
        None,
        [RuleDescription("app-prop-filter-1", CorrelationFilter(content_type="application/json"))],
        [RuleDescription("user-prop-filter-1", CorrelationFilter(properties=(("prop1", "value1"),)))],
        None,
        [
            RuleDescription(
                "sql-filter-1",
                SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'"),
                SqlAction("SET sys.To = 'Entity'"),
            )
        ],
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
    assert read(with_queues({"Name": "orders", "Properties": properties})).entities[0].description == (
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


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("ordering", [False, True])
def test_a_topic_supports_ordering_unless_it_is_partitioned_or_the_file_says_so(
    partitioned: bool, ordering: bool
) -> None:
    """Req: A-02. As over the administration."""
    topic = {"Name": "t", "Properties": {"EnablePartitioning": partitioned}}
    (bare,) = read(with_topics(topic)).entities
    assert bare.description == TopicDescription(
        "t", enable_partitioning=partitioned, support_ordering=not partitioned
    )
    wanted = TopicDescription("t", enable_partitioning=partitioned, support_ordering=ordering)
    (found,) = read(format_config([wanted], {})).entities
    assert found.description == wanted


def test_a_file_is_read_from_disk_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Req: A-02."""
    file = tmp_path / "Config.json"
    file.write_bytes(b"\xef\xbb\xbf" + SAMPLE)
    assert read_config(file) == parse_config(SAMPLE)


def test_comments_are_passed_over_and_what_looks_like_one_in_a_text_is_not() -> None:
    """Req: A-02. The emulator's own file has comments."""
    text = """{ // " an opened text
      "UserConfig": { /* several
         lines " */ "Namespaces": [{"Name": "ns", "Queues": [
           {"Name": "a", "Properties": {"UserMetadata": "\\"https://x /* y */\\\\"}} //"
      ]}] } /**/ }"""
    assert [entity.description for entity in read(text).entities] == [
        QueueDescription("a", user_metadata='"https://x /* y */\\')
    ]


def test_a_mistake_behind_comments_is_told_by_its_own_place() -> None:
    with pytest.raises(ConfigError, match="line 2 column 12: not JSON"):
        read("{ // one\n /* two */ ?")
    with pytest.raises(ConfigError, match="line 1 column 3: not JSON"):
        read("{ /* without an end")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_config(tmp_path / "Config.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_a_setting_left_out_has_the_service_s_default() -> None:
    """Req: A-02. The emulator's own defaults (3 deliveries, 1 hour) are shorter: differs on purpose."""
    description = read(with_queues({"Name": "orders", "Properties": {}})).entities[0].description
    assert description.max_delivery_count == 10
    assert description.default_ttl_ms == UNLIMITED_MS


WRONG = [
    ("", "line 1 column 1: not JSON: Expecting value"),
    ('{"UserConfig": {,}}', "line 1 column 17: not JSON: Expecting property name enclosed in double quotes"),
    ('{"UserConfig": NaN}', "not JSON: NaN is not a JSON value"),
    ("[" * 100_000, "not JSON: nested too deeply"),
    ("[]", "the file: a list is not an object in braces"),
    ('"text"', "the file: 'text' is not an object in braces"),
    ("{}", "UserConfig: missing"),
    ('{"userConfig": {}}', "userConfig: unknown key; did you mean UserConfig?\nUserConfig: missing"),
    ('{"UserConfig": []}', "UserConfig: a list is not an object in braces"),
    ('{"UserConfig": {}}', "UserConfig.Namespaces: missing"),
    ('{"UserConfig": {"Namespaces": {}}}', "UserConfig.Namespaces: an object is not a list in brackets"),
    (with_namespaces(), "UserConfig.Namespaces: holds no namespace; name one at least"),
    (
        with_namespaces(BARE, BARE),
        "UserConfig.Namespaces[1].Name: 'ns' is the name of UserConfig.Namespaces[0] already",
    ),
    (
        with_namespaces(BARE, {"Name": "a", "Properties": {"Tier": "Gold", "MaxConnections": 0}}),
        "UserConfig.Namespaces[1].Properties.Tier: 'Gold' is none of 'Basic', 'Standard', 'Premium'\n"
        "UserConfig.Namespaces[1].Properties.MaxConnections: 0 is not a whole number above 0",
    ),
    (
        with_namespaces(BARE, {"Name": "a", "Properties": {"HostNames": ["*.lan"]}}),
        "UserConfig.Namespaces[1].Properties.HostNames: a list has a pattern; name each host",
    ),
    (
        with_namespaces(
            {"Name": "a", "Properties": {"HostNames": ["x.lan"]}},
            {"Name": "b", "Properties": {"HostNames": ["X.lan"]}},
        ),
        "UserConfig.Namespaces[1].Properties.HostNames: 'x.lan' means the namespace 'a' already",
    ),
    (
        with_namespaces(BARE, {"Name": "a.b"}),
        "UserConfig.Namespaces[1].Name: 'a.b' is not a name: 1 to 63 of A-Z, a-z, 0-9 and -, neither "
        "beginning nor ending with -, and not localhost",
    ),
    (
        with_namespaces(BARE, {"Name": "a", "Properties": {"HostNames": ["Localhost"]}}),
        "UserConfig.Namespaces[1].Properties.HostNames: a list has localhost, the host name of all "
        "namespaces",
    ),
    (with_namespaces(7), "UserConfig.Namespaces[0]: 7 is not an object in braces"),
    (with_namespaces({}), "UserConfig.Namespaces[0].Name: missing"),
    (
        with_namespaces({"Name": ""}),
        "UserConfig.Namespaces[0].Name: '' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "no part between slashes empty, '.' or '..'",
    ),
    (
        with_namespaces({"Name": "ns", "Queue": []}),
        "UserConfig.Namespaces[0].Queue: unknown key; did you mean Queues?",
    ),
    (
        with_namespaces({"Name": "ns", "EventHubs": []}),
        "UserConfig.Namespaces[0].EventHubs: unknown key; known here: Name, Properties, Queues, Topics",
    ),
    (
        with_namespaces({"Name": "ns", "HostNames": ["bank.example.org"]}),
        "UserConfig.Namespaces[0].HostNames: unknown key; did you mean Properties.HostNames?",
    ),
    (
        with_namespaces({"Name": "ns", "odd key\n": 1}),
        'UserConfig.Namespaces[0]."odd key\\n": unknown key; known here: Name, Properties, Queues, Topics',
    ),
    (
        with_namespaces({"Name": "ns", "Queues": {}}),
        "UserConfig.Namespaces[0].Queues: an object is not a list in brackets",
    ),
    (
        with_namespaces({"Name": None, "Queue": None}),
        "UserConfig.Namespaces[0].Queue: unknown key; did you mean Queues?\n"
        "UserConfig.Namespaces[0].Name: null is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "no part between slashes empty, '.' or '..'",
    ),
    (with_topics({"Properties": {}}), f"{TOPIC}.Name: missing"),
    (
        with_topics({"Name": "news", "Subscription": []}),
        f"{TOPIC}.Subscription: unknown key; did you mean Subscriptions?",
    ),
    (
        with_topics({"Name": "news", "Properties": {"LockDuration": "PT1M"}}),
        f"{TOPIC}.Properties.LockDuration: unknown key; known here: AutoDeleteOnIdle, "
        "DefaultMessageTimeToLive, DuplicateDetectionHistoryTimeWindow, EnableBatchedOperations, "
        "EnableExpress, EnablePartitioning, MaxMessageSizeInKilobytes, MaxSizeInMegabytes, "
        "RequiresDuplicateDetection, Status, SupportOrdering, UserMetadata",
    ),
    (
        with_namespaces({"Name": "ns", "Queues": [{"Name": "a"}], "Topics": [{"Name": "A"}]}),
        f"{TOPIC}.Name: 'A' is the name of {QUEUE} already",
    ),
    (with_subscriptions(7), f"{SUBSCRIPTION}: 7 is not an object in braces"),
    (
        with_subscriptions({"Name": "a/b"}),
        f"{SUBSCRIPTION}.Name: 'a/b' is not a name: 1 to 50 of A-Z, a-z, 0-9 and ._-, "
        "and neither '.' nor '..'",
    ),
    (
        with_subscriptions({"Name": "s" * 51}),
        f"{SUBSCRIPTION}.Name: '{'s' * 51}' is not a name: 1 to 50 of A-Z, a-z, 0-9 and ._-, "
        "and neither '.' nor '..'",
    ),
    (
        with_subscriptions({"Name": "all"}, {"Name": "ALL"}),
        f"{TOPIC}.Subscriptions[1].Name: 'ALL' is the name of {SUBSCRIPTION} already",
    ),
    (
        with_subscriptions({"Name": "all", "Properties": {"MaxSizeInMegabyte": 1024}}),
        f"{SUBSCRIPTION}.Properties.MaxSizeInMegabyte: unknown key; known here: AutoDeleteOnIdle, "
        "DeadLetteringOnFilterEvaluationExceptions, DeadLetteringOnMessageExpiration, "
        "DefaultMessageTimeToLive, EnableBatchedOperations, ForwardDeadLetteredMessagesTo, ForwardTo, "
        "LockDuration, MaxDeliveryCount, RequiresSession, Status, UserMetadata",
    ),
    (
        with_subscriptions({"Name": "all", "Rules": "none"}),
        f"{SUBSCRIPTION}.Rules: 'none' is not a list in brackets",
    ),
    (with_rules({"Name": "r"}), f"{RULE}.Properties: missing"),
    (
        with_rules({"Name": "$", "Properties": {"FilterType": "True"}}),
        f"{RULE}.Name: '$' is not a name: 1 to 50 of A-Z, a-z, 0-9 and ._-, "
        "and neither '.' nor '..'; a $ may come before a letter or digit",
    ),
    (
        with_rules(*({"Name": name, "Properties": {"FilterType": "True"}} for name in ("r", "R"))),
        f"{SUBSCRIPTION}.Rules[1].Name: 'R' is the name of {RULE} already",
    ),
    (with_rule(SqlFilter={"SqlExpression": "1=1"}), f"{RULE}.Properties.FilterType: missing"),
    (
        with_rule(FilterType="SqlFilter", SqlFilter={"SqlExpression": "1=1"}),
        f"{RULE}.Properties.FilterType: 'SqlFilter' is none of 'Correlation', 'Sql', 'True', 'False'",
    ),
    (
        with_rule(FilterType="correlation", CorrelationFilter={"Label": "x"}),
        f"{RULE}.Properties.FilterType: 'correlation' is none of 'Correlation', 'Sql', 'True', 'False'; "
        "did you mean 'Correlation'? The case matters",
    ),
    (
        with_rule(FilterType=None),
        f"{RULE}.Properties.FilterType: null is none of 'Correlation', 'Sql', 'True', 'False'",
    ),
    (with_rule(FilterType="Sql"), f"{RULE}.Properties.SqlFilter: missing"),
    (with_rule(FilterType="Sql", SqlFilter=None), f"{RULE}.Properties.SqlFilter: missing"),
    (with_rule(FilterType="Correlation"), f"{RULE}.Properties.CorrelationFilter: missing"),
    (
        with_rule(FilterType="True", SqlFilter={"SqlExpression": "1=1"}),
        f"{RULE}.Properties.SqlFilter: does not go with FilterType 'True'",
    ),
    (with_rule(FilterType="Sql", SqlFilter={}), f"{RULE}.Properties.SqlFilter.SqlExpression: missing"),
    (
        with_rule(FilterType="Sql", SqlFilter={"SqlExpression": 1}),
        f"{RULE}.Properties.SqlFilter.SqlExpression: 1 is not a string",
    ),
    (
        with_rule(FilterType="Sql", SqlFilter={"SqlExpression": "a = @b", "Parameters": []}),
        f"{RULE}.Properties.SqlFilter.Parameters: a list is not an object in braces",
    ),
    (
        with_rule(FilterType="True", Action={"SqlExpresion": "SET a = 1"}),
        f"{RULE}.Properties.Action.SqlExpresion: unknown key; did you mean SqlExpression?\n"
        f"{RULE}.Properties.Action.SqlExpression: missing",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"Lable": "x"}),
        f"{RULE}.Properties.CorrelationFilter.Lable: unknown key; did you mean Label?",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"Subject": "x"}),
        f"{RULE}.Properties.CorrelationFilter.Subject: unknown key; did you mean Label?",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"To": 7}),
        f"{RULE}.Properties.CorrelationFilter.To: 7 is not a string",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a b": [1]}}),
        f'{RULE}.Properties.CorrelationFilter.Properties."a b": a list is not a value: a string, a number, '
        'true, false, null, or {"Type": "...", "Value": "..."} with one of the types base64Binary, dateTime, '
        "decimal, double, duration, guid",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": 2**64}}),
        f"{RULE}.Properties.CorrelationFilter.Properties.a: 18446744073709551616 does not fit into 64 bits",
    ),
    (
        with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": "X"}}).replace(
            '"X"', "1e999"
        ),
        f"{RULE}.Properties.CorrelationFilter.Properties.a: the number is too large for a double",
    ),
    *(
        (
            with_rule(
                FilterType="Correlation",
                CorrelationFilter={"Properties": {"a": {"Type": kind, "Value": "x"}}},
            ),
            f"{RULE}.Properties.CorrelationFilter.Properties.a: 'x' is not a {kind} such as {example}",
        )
        for kind, example in (
            ("base64Binary", "AAE="),
            ("dateTime", "2024-01-31T12:00:00Z"),
            ("decimal", "9.90"),
            ("double", "INF"),
            ("duration", "P1DT30.5S"),
            ("guid", "00000000-0000-0000-0000-000000000001"),
        )
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
        "no part between slashes empty, '.' or '..'",
    ),
    (
        with_queues({"Name": "o" * 261}),
        f"{QUEUE}.Name: '{'o' * 60}...' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "no part between slashes empty, '.' or '..'",
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
        with_property("DuplicateDetectionHistoryTimeWindow", True),
        f"{QUEUE}.Properties.DuplicateDetectionHistoryTimeWindow: "
        "true is not an ISO 8601 duration such as PT1M, in quotation marks",
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
        with_property("ForwardTo", "a//b"),
        f"{QUEUE}.Properties.ForwardTo: 'a//b' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "no part between slashes empty, '.' or '..'",
    ),
    (
        with_property("ForwardTo", "sb://localhost/other/.."),
        f"{QUEUE}.Properties.ForwardTo: 'sb://localhost/other/..' is not a name: 1 to 260 of A-Z, a-z, 0-9 "
        "and ._-/, no part between slashes empty, '.' or '..'",
    ),
    (
        with_property("ForwardTo", "ftp://localhost/other"),
        f"{QUEUE}.Properties.ForwardTo: 'ftp://localhost/other' is neither a name nor an address such as "
        "sb://host/name",
    ),
    (
        with_property("ForwardTo", "sb://localhost/"),
        f"{QUEUE}.Properties.ForwardTo: 'sb://localhost/' is an address that names no entity",
    ),
    (
        with_property("ForwardTo", "other/"),
        f"{QUEUE}.Properties.ForwardTo: 'other/' is not a name: 1 to 260 of A-Z, a-z, 0-9 and ._-/, "
        "no part between slashes empty, '.' or '..'",
    ),
    (
        with_property("ForwardDeadLetteredMessagesTo", 0),
        f'{QUEUE}.Properties.ForwardDeadLetteredMessagesTo: 0 is not a name in quotation marks ("" for none)',
    ),
    (
        with_property("Status", "active"),
        f"{QUEUE}.Properties.Status: 'active' is none of "
        "'Active', 'Disabled', 'SendDisabled', 'ReceiveDisabled'; did you mean 'Active'? The case matters",
    ),
    (
        with_property("UserMetadata", 7),
        f'{QUEUE}.Properties.UserMetadata: 7 is not a string ("" for none)',
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
        read(with_queues({"Name": "a", "Properties": {"LockDuration": 1, "Speed": 2}}, {"Name": "/"}))
    assert [problem.split(": ")[0] for problem in refused.value.problems] == [
        f"{QUEUE}.Properties.Speed",
        f"{QUEUE}.Properties.LockDuration",
        "UserConfig.Namespaces[0].Queues[1].Name",
    ]


def test_a_file_beyond_the_size_limit_is_not_parsed() -> None:
    parse_config(SAMPLE.ljust(FILE_BYTES_MAX))
    with pytest.raises(ConfigError, match=f"is larger than {FILE_BYTES_MAX} bytes"):
        parse_config(SAMPLE.ljust(FILE_BYTES_MAX + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "UserConfig",
                    "Namespaces",
                    "Name",
                    "Queues",
                    "Topics",
                    "Subscriptions",
                    "Rules",
                    "Properties",
                    "FilterType",
                    "CorrelationFilter",
                    "Type",
                    "é",
                ]
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


# Rules


def test_filters_and_actions_of_each_kind_are_read() -> None:
    """Req: A-02, P-02."""
    config = read(
        with_rules(
            {"Name": "$Default", "Properties": {"FilterType": "True"}},
            {"Name": "nothing", "Properties": {"FilterType": "False"}},
            {
                "Name": "sql",
                "Properties": {
                    "FilterType": "Sql",
                    "SqlFilter": {"SqlExpression": "a = @a", "Parameters": {"@a": 1.5}},
                    "Action": {"SqlExpression": "SET b = @b", "Parameters": {"@b": None}},
                },
            },
            {
                "Name": "by-all",
                "Properties": {
                    "FilterType": "Correlation",
                    "CorrelationFilter": {
                        "ContentType": "1",
                        "CorrelationId": "2",
                        "Label": "3",
                        "MessageId": "4",
                        "ReplyTo": "5",
                        "ReplyToSessionId": "6",
                        "SessionId": "7",
                        "To": "",
                        "Properties": {"text": "1", "whole": 1, "double": 1.0, "flag": True},
                    },
                },
            },
        )
    )
    assert repr(rules_of(config)) == repr(  # 1 and True are equal
        [
            RuleDescription("$Default"),
            RuleDescription("nothing", FalseFilter()),
            RuleDescription(
                "sql", SqlFilter("a = @a", (("@a", 1.5),)), SqlAction("SET b = @b", (("@b", None),))
            ),
            RuleDescription(
                "by-all",
                CorrelationFilter(
                    content_type="1",
                    correlation_id="2",
                    label="3",
                    message_id="4",
                    reply_to="5",
                    reply_to_session_id="6",
                    session_id="7",
                    to="",
                    properties=(("text", "1"), ("whole", 1), ("double", 1.0), ("flag", True)),
                ),
            ),
        ]
    )


@pytest.mark.parametrize("rules", [{}, {"Rules": []}])
def test_a_subscription_for_which_no_rules_are_given_has_the_default_one(rules: dict[str, Any]) -> None:
    """Req: A-02, P-03. Source: issue 127 of the emulator: an empty list leaves `$Default`."""
    (_, subscription) = read(with_subscriptions({"Name": "all", **rules})).entities
    assert subscription.rules is None


def test_a_subscription_can_be_said_to_have_no_rules() -> None:
    """Req: A-02, P-03."""
    (_, subscription) = read(with_subscriptions({"Name": "all", "Rules": "None"})).entities
    assert subscription.rules == ()


def test_a_null_is_as_if_its_key_were_left_out() -> None:
    """Req: A-02. Serialisers write what is not set so."""
    by_label = {"Label": "x", "To": None, "Properties": None}
    by_text = {"SqlExpression": "x IS NULL", "Parameters": None}
    properties: list[dict[str, Any]] = [
        {"FilterType": "Correlation", "CorrelationFilter": by_label, "SqlFilter": None, "Action": None},
        {"FilterType": "Sql", "CorrelationFilter": None, "SqlFilter": by_text, "Action": by_text},
    ]
    rules = [{"Name": f"r{n}", "Properties": each} for n, each in enumerate(properties)]
    subscriptions = [
        {"Name": "a", "Properties": dict.fromkeys(PROPERTIES[SubscriptionDescription]), "Rules": rules},
        {"Name": "b", "Properties": None, "Rules": None},
    ]
    topics = [
        {
            "Name": "news",
            "Properties": dict.fromkeys(PROPERTIES[TopicDescription]),
            "Subscriptions": subscriptions,
        },
        {"Name": "olds", "Properties": None, "Subscriptions": None},
    ]
    queues = [{"Name": "q", "Properties": dict.fromkeys(PROPERTIES[QueueDescription])}]
    config = read(with_namespaces({"Name": "ns", "Queues": queues, "Topics": topics}, Logging=None))
    assert all(not entity.settings for entity in config.entities)
    assert [entity.rules is None for entity in config.entities] == [True, True, False, True, True]
    assert rules_of(config) == [
        RuleDescription("r0", CorrelationFilter(label="x")),
        RuleDescription("r1", SqlFilter("x IS NULL"), SqlAction("x IS NULL")),
    ]
    nothing = read(with_namespaces({"Name": "ns", "Queues": None, "Topics": None}))
    assert nothing.entities == ()


def test_a_null_among_application_properties_is_a_value() -> None:
    """Req: A-02, P-02."""
    text = with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": None}})
    (rule,) = rules_of(read(text))
    assert rule.filter == CorrelationFilter(properties=(("a", None),))


def test_subscriptions_of_two_topics_may_have_one_name() -> None:
    """Req: A-02."""
    topics = ({"Name": name, "Subscriptions": [{"Name": "all"}]} for name in ("a", "b"))
    assert [entity.name for entity in read(with_topics(*topics)).entities] == [
        "a",
        "a/Subscriptions/all",
        "b",
        "b/Subscriptions/all",
    ]


# Writing


def test_a_file_that_is_written_holds_what_somebody_has_set() -> None:
    """Req: A-02. And MaxDeliveryCount, which the emulator takes for 3 when it is left out."""
    assert format_config(
        [
            QueueDescription("orders", lock_duration_ms=90_500, forward_to="Archive", max_delivery_count=3),
            QueueDescription("Archive", status=EntityStatus.SEND_DISABLED, user_metadata="für später"),
        ],
        {},
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


def test_topics_are_written_with_their_subscriptions_and_their_rules() -> None:
    """Req: A-02."""
    entities: list[Description] = [
        SubscriptionDescription("News", "sport", forward_to="q", max_delivery_count=4),
        SubscriptionDescription("News", "all"),
        TopicDescription("News", support_ordering=False),
        SubscriptionDescription("News", "never"),
    ]
    rules = {
        "News/Subscriptions/all": [RuleDescription("$Default", created_at_ms=17)],
        "News/Subscriptions/sport": [
            RuleDescription("b", SqlFilter("x = 1"), SqlAction("SET y = 2"), created_at_ms=17),
            RuleDescription("a", CorrelationFilter(label="goal", properties=(("n", 1),)), created_at_ms=17),
        ],
    }
    assert json.loads(format_config(entities, rules))["UserConfig"]["Namespaces"][0] == {
        "Name": "sbemulatorns",
        "Queues": [],
        "Topics": [
            {
                "Name": "News",
                "Properties": {"SupportOrdering": False},
                "Subscriptions": [
                    {"Name": "all", "Properties": {"MaxDeliveryCount": 10}},
                    {"Name": "never", "Properties": {"MaxDeliveryCount": 10}, "Rules": "None"},
                    {
                        "Name": "sport",
                        "Properties": {"ForwardTo": "q", "MaxDeliveryCount": 4},
                        "Rules": [
                            {
                                "Name": "a",
                                "Properties": {
                                    "FilterType": "Correlation",
                                    "CorrelationFilter": {"Label": "goal", "Properties": {"n": 1}},
                                },
                            },
                            {
                                "Name": "b",
                                "Properties": {
                                    "FilterType": "Sql",
                                    "SqlFilter": {"SqlExpression": "x = 1"},
                                    "Action": {"SqlExpression": "SET y = 2"},
                                },
                            },
                        ],
                    },
                ],
            }
        ],
    }


def test_every_setting_has_its_place_in_the_file() -> None:
    """Req: A-02. Else an entity would come back with less than it had; of authorization rules an export
    says so."""
    for kind, properties in PROPERTIES.items():
        in_file = {field for field, _ in properties.values()}
        of_entity = {field.name for field in dataclasses.fields(kind)} - {*GIVEN_FORWARDS.values()}
        assert in_file == of_entity - {"name", "topic_name", "subscription_name", "authorization_rules"}


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
    forward_to_given="https://localhost:5300/a",
    forward_dead_lettered_to_given="sb://elsewhere/B/",
    user_metadata='quoted "text", \\, \n and \U0001f600',
    auto_delete_on_idle_ms=300_000,
    enable_partitioning=True,
    enable_express=True,
    max_message_size_kb=102_400,
)


EVERY_TOPIC_SETTING = TopicDescription(
    "tenant/Topic.1",
    max_size_mb=5120,
    requires_duplicate_detection=True,
    default_ttl_ms=1_234_567_890_123,
    duplicate_window_ms=20_000,
    enable_batched_operations=False,
    status=EntityStatus.DISABLED,
    user_metadata="x",
    auto_delete_on_idle_ms=300_000,
    enable_partitioning=True,
    enable_express=True,
    support_ordering=False,
    max_message_size_kb=102_400,
)
EVERY_SUBSCRIPTION_SETTING = SubscriptionDescription(
    "tenant/Topic.1",
    "Sub.1",
    lock_duration_ms=5_001,
    requires_session=True,
    default_ttl_ms=1_234_567_890_123,
    dead_lettering_on_expiration=True,
    dead_lettering_on_filter_errors=False,
    max_delivery_count=2_000,
    enable_batched_operations=False,
    status=EntityStatus.RECEIVE_DISABLED,
    forward_to="a",
    forward_dead_lettered_to="B",
    forward_to_given="https://localhost:5300/a",
    forward_dead_lettered_to_given="sb://elsewhere/B/",
    user_metadata="y",
    auto_delete_on_idle_ms=300_000,
)


@pytest.mark.parametrize(
    ("default", "other"),
    [
        (QueueDescription("z"), EVERY_SETTING),
        (TopicDescription("z"), EVERY_TOPIC_SETTING),
        (SubscriptionDescription("tenant/Topic.1", "z"), EVERY_SUBSCRIPTION_SETTING),
    ],
)
def test_what_is_written_is_read_as_it_was(default: Description, other: Description) -> None:
    """Req: A-02."""
    for field in dataclasses.fields(default):
        if field.name not in ("topic_name", "authorization_rules"):
            assert getattr(other, field.name) != getattr(default, field.name)
    entities = [other, default]
    if isinstance(other, SubscriptionDescription):
        entities.insert(0, TopicDescription(other.topic_name))
    [config] = parse_config(format_config(entities, {}).encode())
    assert [entity.description for entity in config.entities] == entities


SHORT_TEXTS = st.text(max_size=8)
VALUES: st.SearchStrategy[Value | None] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    SHORT_TEXTS,
    st.binary(max_size=8),
    st.uuids(),
    st.datetimes(timezones=st.sampled_from([None, UTC])).map(lambda at: at.replace(fold=0)),
    st.timedeltas(),
    st.decimals(-(10**24), 10**24, allow_nan=False, places=4),  # 96 bits with four places
)
PAIRS = st.dictionaries(SHORT_TEXTS, VALUES, max_size=4).map(lambda pairs: tuple(pairs.items()))
TEXTS = st.none() | SHORT_TEXTS
FILTERS = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, SHORT_TEXTS, PAIRS),
    st.builds(CorrelationFilter, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, PAIRS),
)


@given(FILTERS, st.none() | st.builds(SqlAction, SHORT_TEXTS, PAIRS))
def test_a_rule_is_read_as_it_was_written(given: Filter, action: SqlAction | None) -> None:
    """Req: A-02, P-02. Values of every type come back as what they were."""
    rules = [RuleDescription("$Default", given, action), RuleDescription("r")]
    entities: list[Description] = [TopicDescription("t"), SubscriptionDescription("t", "s")]
    text = format_config(entities, {"t/Subscriptions/s": rules})
    [config] = parse_config(text.encode())
    assert repr(rules_of(config)) == repr(rules)  # 1 and True are equal, nan is not


def test_a_namespace_without_entities_is_written_and_read() -> None:
    """Req: A-02."""
    assert parse_config(format_config([], {}).encode()) == (Config("sbemulatorns", ()),)


def test_as_many_queues_as_the_service_has_fit_into_a_file() -> None:
    """Req: A-02, A-05. With the longest names and metadata."""
    queue = dataclasses.replace(
        EVERY_SETTING,
        name="n" * 260,
        forward_to="t" * 260,
        forward_dead_lettered_to="d" * 260,
        user_metadata="\U0001f600" * 1024,
    )
    one, two = (len(format_config([queue] * count, {}).encode()) for count in (1, 2))
    assert one + 9_999 * (two - one) <= FILE_BYTES_MAX


def test_defaults_of_the_emulator_are_for_what_the_file_leaves_out() -> None:
    namespace = {
        "Name": "ns",
        "Queues": [{"Name": "q", "Properties": {"MaxDeliveryCount": 7}}],
        "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s"}]}],
    }
    text = json.dumps({"UserConfig": {"Namespaces": [namespace]}}).encode()
    queue, topic, subscription = (
        entity.description for entity in parse_config(text, EMULATOR_DEFAULTS)[0].entities
    )
    assert (queue.max_delivery_count, queue.default_ttl_ms) == (7, 3_600_000)
    assert topic.default_ttl_ms == 3_600_000
    assert (subscription.max_delivery_count, subscription.default_ttl_ms) == (3, 3_600_000)
    assert parse_config(text)[0].entities[2].description.max_delivery_count == 10
