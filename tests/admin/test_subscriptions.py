"""SubscriptionDescription: what is written can be read back; the first rule in it; what is shown beside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.elements import Shown, read_first_rule, read_subscription, write_description
from peeklock.admin.reading import read_description
from peeklock.broker.vocabulary.descriptions import EntityStatus, RuleDescription, SubscriptionDescription
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.rules.filters import CorrelationFilter, SqlAction, TrueFilter
from tests.admin.strategies import DURATIONS, NAMES, SCHEMES, XML_TEXT, read_from, with_addresses

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

BARE_DESCRIPTIONS = st.builds(
    SubscriptionDescription,
    topic_name=NAMES,
    subscription_name=NAMES,
    lock_duration_ms=DURATIONS,
    requires_session=st.booleans(),
    default_ttl_ms=DURATIONS,
    dead_lettering_on_expiration=st.booleans(),
    dead_lettering_on_filter_errors=st.booleans(),
    max_delivery_count=st.integers(-(10**9), 10**9),
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(EntityStatus),
    forward_to=st.none() | NAMES,
    forward_dead_lettered_to=st.none() | NAMES,
    user_metadata=st.none() | XML_TEXT.filter(bool),
    auto_delete_on_idle_ms=DURATIONS,
)
DESCRIPTIONS = st.builds(with_addresses, BARE_DESCRIPTIONS, SCHEMES)


def written(description: SubscriptionDescription, accessed_at_ms: int = 0) -> str:
    view = EntityView(1, description, 1_704_067_200_500, 2, accessed_at_ms, 4096, 5, 0, 3, 2)
    return write_description(Shown(view, "localhost:5300", 256))


@given(DESCRIPTIONS)
def test_every_description_survives_writing_and_reading(description: SubscriptionDescription) -> None:
    """Req: A-01. A client that reads and writes back changes nothing, but that names become addresses."""
    body = f"<entry><content>{written(description)}</content></entry>".encode()
    found = read_subscription(read_description(body), description.topic_name, description.subscription_name)
    assert found == read_from(description, "localhost:5300")


def test_only_what_an_update_leaves_out_of_the_immutable_comes_from_what_is_there() -> None:
    """Req: A-07."""
    existing = SubscriptionDescription("news", "a", requires_session=True, max_delivery_count=3)
    body = b"<entry><content><SubscriptionDescription/></content></entry>"
    found = read_subscription(read_description(body), "news", "a", existing)
    assert found == SubscriptionDescription("news", "a", requires_session=True)


WRITTEN = f"""\
<SubscriptionDescription xmlns="{CONNECT}" xmlns:i="{INSTANCE}">\
<LockDuration>PT1M</LockDuration><RequiresSession>false</RequiresSession>\
<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>\
<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>\
<DeadLetteringOnFilterEvaluationExceptions>true</DeadLetteringOnFilterEvaluationExceptions>\
<MessageCount>10</MessageCount><MaxDeliveryCount>10</MaxDeliveryCount>\
<EnableBatchedOperations>true</EnableBatchedOperations><Status>Active</Status>\
<ForwardTo>sb://localhost:5300/last</ForwardTo>\
<CreatedAt>2024-01-01T00:00:00.500Z</CreatedAt><UpdatedAt>1970-01-01T00:00:00.002Z</UpdatedAt>\
<AccessedAt>2024-01-01T00:00:00.500Z</AccessedAt>\
<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">\
<d2p1:ActiveMessageCount>5</d2p1:ActiveMessageCount>\
<d2p1:DeadLetterMessageCount>3</d2p1:DeadLetterMessageCount>\
<d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount>\
<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>\
<d2p1:TransferDeadLetterMessageCount>2</d2p1:TransferDeadLetterMessageCount></CountDetails>\
<ForwardDeadLetteredMessagesTo>sb://localhost:5300/dead</ForwardDeadLetteredMessagesTo>\
<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>\
<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><UserMetadata>a&amp;b</UserMetadata>\
</SubscriptionDescription>"""


def test_a_subscription_is_written_to_the_byte() -> None:
    """Req: A-01. Source: wire contract 7.5: order of elements."""
    description = SubscriptionDescription(
        "news", "a", forward_to="last", forward_dead_lettered_to="dead", user_metadata="a&b"
    )
    assert written(description) == WRITTEN


def test_a_subscription_that_was_used_shows_when() -> None:
    """Req: A-01. Source: wire contract C16; one that was never used shows its creation (above)."""
    assert "<AccessedAt>1970-01-01T00:00:00.003Z</AccessedAt>" in written(
        SubscriptionDescription("news", "a"), accessed_at_ms=3
    )


def first_rule(text: str) -> RuleDescription | None:
    body = (
        f'<entry><content><SubscriptionDescription xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{text}'
        "</SubscriptionDescription></content></entry>"
    )
    return read_first_rule(read_description(body.encode()))


def test_the_first_rule_may_be_given() -> None:
    """Req: A-01, P-03. Source: wire contract 7.5: Filter, Action, Name; its own name, else `$Default`."""
    assert first_rule("") is None
    assert first_rule('<DefaultRuleDescription i:nil="true"/>') is None
    assert first_rule("<DefaultRuleDescription/>") == RuleDescription("$Default", TrueFilter())
    assert first_rule(
        '<DefaultRuleDescription><Filter i:type="CorrelationFilter"><Label>a</Label></Filter>'
        '<Action i:type="SqlRuleAction"><SqlExpression>SET b=1</SqlExpression></Action>'
        "<Name>mine</Name></DefaultRuleDescription>"
    ) == RuleDescription("mine", CorrelationFilter(label="a"), SqlAction("SET b=1"))
