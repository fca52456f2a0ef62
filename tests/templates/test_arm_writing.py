"""A configuration as an ARM template: what is written is read as it was, and what cannot be written is said.

Req: A-02.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.config.file import format_config, parse_config
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from peeklock.templates.arm_scope import Scope
from peeklock.templates.arm_writing import format_template
from peeklock.templates.found import as_set
from peeklock.templates.sources import read_source
from tests.config.test_reconcile import descriptions, subscriptions

TEXTS = st.text(min_size=1, max_size=9) | st.sampled_from(["[a]", "[[a]", "[x", "a]", "[concat('a')]", "'"])
FILTERS: st.SearchStrategy[Filter] = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, st.sampled_from(["a = 1", "[a] = 1", "[a] = [b]", "1=1 OR a > 2", "a = 'it''s'"])),
    st.builds(
        lambda label, pairs: CorrelationFilter(label=label, properties=tuple(pairs.items())),
        TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=2),
    ),
)
ACTIONS = st.none() | st.builds(SqlAction, st.sampled_from(["SET a = 1", "REMOVE [a]"]))
RULES = st.lists(
    st.builds(RuleDescription, st.sampled_from(["$Default", "a", "B-2"]), FILTERS, ACTIONS),
    min_size=1,
    max_size=3,
    unique_by=lambda rule: rule.name,
)


def set_again(description: Description) -> Description:
    settings = {each.name: getattr(description, each.name) for each in fields(description)}
    return replace(description, **as_set(settings))


@given(st.data(), st.sampled_from([BASIC, STANDARD, PREMIUM]), st.permutations(["a", "B/b", "c-1", "D"]))
def test_a_template_that_was_written_is_read_as_it_was(
    data: st.DataObject, tier: TierLimits, names: list[str]
) -> None:
    entities: list[Description] = []
    rules: dict[str, list[RuleDescription]] = {}
    for name in names:
        made = data.draw(descriptions(name, [each.name for each in entities], tier))
        entities.append(replace(made, user_metadata=None))
    if tier.topics:
        entities.append(TopicDescription("T/t", support_ordering=data.draw(st.booleans())))
        for name in ("s", "S-2"):
            made_below = data.draw(subscriptions("T/t", name, names))
            entities.append(replace(made_below, user_metadata=None))
            rules[entities[-1].name] = data.draw(RULES)
    [config] = parse_config(format_config(entities, rules).encode())
    written = format_template(config, tier.name)
    assert written.warnings == ()
    [found] = read_source(written.text.encode()).configs
    assert (found.namespace, found.limits.tier) == ("sbemulatorns", tier.name.lower())
    assert {each.name: each.description for each in found.entities} == {
        each.name: set_again(each) for each in entities
    }
    for entity in found.entities:
        if isinstance(entity.bare, SubscriptionDescription):
            read = [each.rule for each in entity.rules or ()] or [RuleDescription("$Default")]
            assert sorted(map(repr, read)) == sorted(map(repr, rules[entity.name]))
    check_order(json.loads(written.text))


def check_order(template: dict[str, Any]) -> None:
    """Check that each resource depends on earlier ones alone, as they are named."""
    scope = Scope(template, {}, "")
    there: set[str] = set()
    for resource in template["resources"]:
        provider, *kinds = resource["type"].split("/")
        names = scope.evaluated(resource["name"], "").split("/")
        for needed in resource.get("dependsOn", ()):
            assert scope.evaluated(needed, "") in there
        pairs = "".join(f"/{kind}/{name}" for kind, name in zip(kinds, names, strict=True))
        there.add(f"/providers/{provider}{pairs}")


def test_what_a_template_cannot_have_is_said() -> None:
    entities: list[Description] = [
        QueueDescription("noted", user_metadata="x"),
        QueueDescription("a", forward_to="b"),
        QueueDescription("b", forward_to="a"),
        QueueDescription("self", forward_dead_lettered_to="self"),
        TopicDescription("t"),
        SubscriptionDescription("t", "none"),
        SubscriptionDescription("t", "s"),
    ]
    rules = {
        "t/Subscriptions/s": [
            RuleDescription("n", CorrelationFilter(label="x", properties=(("number", 3), ("text", "y")))),
            RuleDescription("p", SqlFilter("a = @a", (("@a", 1),)), SqlAction("SET b = @b", (("@b", 2),))),
        ]
    }
    [config] = parse_config(format_config(entities, rules).encode())
    written = format_template(config)
    assert set(written.warnings) == {
        "'noted': UserMetadata is left out: version 2021-11-01 of the API has no such setting",
        "'b': forwards in a cycle over 'a': deploy the template twice",
        "'t/Subscriptions/s': rule 'n' compares 'number' with a value that is not a string, which a template "
        "cannot have: the comparison is left out, and the rule matches more",
        "'t/Subscriptions/s': rule 'p' has the parameters @a, which a template cannot have: write their "
        "values into the expression",
        "'t/Subscriptions/s': rule 'p' has the parameters @b, which a template cannot have: write their "
        "values into the expression",
    }
    [found] = read_source(written.text.encode()).configs
    [without] = [each.rules for each in found.entities if each.name == "t/Subscriptions/none"]
    assert without is not None
    assert [each.rule for each in without] == [RuleDescription("$Default", FalseFilter())]
