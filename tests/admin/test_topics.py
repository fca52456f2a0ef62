"""TopicDescription: what is written can be read back; what is shown beside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peeklock.admin.elements import Shown, read_topic, write_description
from peeklock.admin.reading import read_description
from peeklock.broker.vocabulary.descriptions import EntityStatus, TopicDescription
from peeklock.broker.vocabulary.effects import EntityView
from tests.admin.strategies import DURATIONS, NAMES, XML_TEXT

DESCRIPTIONS = st.builds(
    TopicDescription,
    name=NAMES,
    max_size_mb=st.integers(1024, 10**9),  # of a partition at least so much, or its size cannot be told
    requires_duplicate_detection=st.booleans(),
    default_ttl_ms=DURATIONS,
    duplicate_window_ms=DURATIONS,
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(EntityStatus),
    user_metadata=st.none() | XML_TEXT.filter(bool),
    auto_delete_on_idle_ms=DURATIONS,
    enable_partitioning=st.booleans(),
    enable_express=st.booleans(),
    support_ordering=st.booleans(),
    max_message_size_kb=st.none() | st.integers(1, 10**6).filter(lambda size: size != 256),
)


def written(description: TopicDescription) -> str:
    view = EntityView(1, description, 1_704_067_200_500, 2, 0, 4096, 0, 6, 0, 0, 11, 12, 13)
    return write_description(Shown(view, "localhost:5300", 256))


def read(text: str, **settings: object) -> TopicDescription:
    body = f"<entry><content>{text}</content></entry>"
    return read_topic(read_description(body.encode()), "news", 256)


@given(DESCRIPTIONS)
def test_every_description_survives_writing_and_reading(description: TopicDescription) -> None:
    """Req: A-01. A client that reads and writes back changes nothing."""
    body = f"<entry><content>{written(description)}</content></entry>".encode()
    assert read_topic(read_description(body), description.name, 256) == description


def test_only_what_an_update_leaves_out_of_the_immutable_comes_from_what_is_there() -> None:
    """Req: A-07."""
    existing = TopicDescription(
        "news", requires_duplicate_detection=True, enable_partitioning=True, max_size_mb=5120
    )
    body = b"<entry><content><TopicDescription/></content></entry>"
    assert read_topic(read_description(body), "News", 256, existing) == TopicDescription(
        "News", requires_duplicate_detection=True, enable_partitioning=True, support_ordering=False
    )


def test_a_partitioned_topic_keeps_no_order_unless_it_says_so() -> None:
    """Req: A-01. Source: wire contract 7.4, our choice where it says "[?]"."""
    partitioned = "<EnablePartitioning>true</EnablePartitioning>"
    ordered = "<SupportOrdering>true</SupportOrdering>"
    for given_elements, supports in (("", True), (partitioned, False), (partitioned + ordered, True)):
        assert read(f"<TopicDescription>{given_elements}</TopicDescription>").support_ordering is supports


CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
WRITTEN = f"""\
<TopicDescription xmlns="{CONNECT}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">\
<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>\
<MaxSizeInMegabytes>1024</MaxSizeInMegabytes>\
<RequiresDuplicateDetection>false</RequiresDuplicateDetection>\
<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>\
<EnableBatchedOperations>true</EnableBatchedOperations><SizeInBytes>4096</SizeInBytes>\
<FilteringMessagesBeforePublishing>false</FilteringMessagesBeforePublishing>\
<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules/><Status>Active</Status>\
<CreatedAt>2024-01-01T00:00:00.500Z</CreatedAt><UpdatedAt>1970-01-01T00:00:00.002Z</UpdatedAt>\
<AccessedAt>0001-01-01T00:00:00Z</AccessedAt><SupportOrdering>true</SupportOrdering>\
<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">\
<d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>\
<d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount>\
<d2p1:ScheduledMessageCount>6</d2p1:ScheduledMessageCount>\
<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>\
<d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount></CountDetails>\
<SubscriptionCount>11</SubscriptionCount><SqlFilterCount>12</SqlFilterCount>\
<CorrelationFilterCount>13</CorrelationFilterCount>\
<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>\
<EntityAvailabilityStatus>Available</EntityAvailabilityStatus>\
<EnableSubscriptionPartitioning>false</EnableSubscriptionPartitioning><EnableExpress>false</EnableExpress>\
<UserMetadata>a&amp;b</UserMetadata><MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>\
</TopicDescription>"""


def test_a_topic_is_written_to_the_byte() -> None:
    """Req: A-01. Source: wire contract 7.4: order of elements."""
    assert written(TopicDescription("news", user_metadata="a&b")) == WRITTEN
