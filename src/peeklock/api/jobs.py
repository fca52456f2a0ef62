"""Operations on jobs: long work over messages, which outlives the request that starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from peeklock.amqp.codec import EncodeError
from peeklock.api.criteria import BY, MEMBERS, read_by, read_criteria
from peeklock.api.exchange import Answer, ApiExchange, Ask, Steer
from peeklock.api.instants import read_instant
from peeklock.api.model import COUNT, INSTANT, SEQUENCE_NUMBER, STATES, VALUES, ttl_ms
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import PATH_PARAMETERS, Call, Operation, Parameter, entity_of, node_of
from peeklock.api.works import ENTITY, STREAM, count_of, require_messages, streamed
from peeklock.auth.rights import Grant, Right, within
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.descriptions import SubscriptionDescription
from peeklock.broker.vocabulary.effects import EntityFound, EntityView
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation
from peeklock.broker.vocabulary.message import MessageState
from peeklock.gateway.address import Node, shown
from peeklock.jobs.edits import Edits
from peeklock.jobs.plan import Plan, sends_to

NUMBERS_MAX: Final = 10_000
BODY_BYTES_MAX: Final = 256 * 1024
"""Of a request for a job: a checkpoint holds its numbers too. Our choice."""

FORWARDS: Final = ("move", "resubmit")
"""Works that send messages to a target."""

WORKS: Final = ("purge", "cancel", "reschedule", "move", "resubmit", "deadLetter")

SHIFT_S_MAX: Final = 100 * 366 * 86_400
"""A century. Our choice."""

_ACTIVE: Final = [STATES[MessageState.ACTIVE]]
_DEFAULT_STATES: Final[Mapping[str, list[str]]] = {
    "purge": list(STATES.values()),
    "cancel": [STATES[MessageState.SCHEDULED]],
    "reschedule": [STATES[MessageState.SCHEDULED]],
}
_SHOWN: Final = ("criteria", "group", "rate", "limit")
"""Members of an order that its job shows too. Its numbers are too many."""

_TEXT: Schema = {"type": "string", "maxLength": 4096}

EDITS: Schema = record(
    {
        "set": {**VALUES, "description": "Application properties to set."},
        "remove": {"type": "array", "maxItems": 250, "items": {"type": "string"}},
        "subject": _TEXT,
        "sessionId": {"type": "string", "maxLength": 128},
        "timeToLive": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
    },
    (),
    description="What changes in each message that is sent.",
)

CRITERIA: Schema = record(MEMBERS, (), description="All that are given must be true of a message.")
GROUP: Schema = record(
    {"by": BY, "value": _TEXT}, description="Only messages of this group, as `groupMessages` shows it."
)
RATE: Schema = {"type": "number", "minimum": 0.01, "description": "Messages a second, at most."}
LIMIT: Schema = {"type": "integer", "minimum": 1, "description": "Messages, at most."}

ORDER: Schema = record(
    {
        "work": {
            "type": "string",
            "enum": list(WORKS),
            "description": "`purge` removes messages, `cancel` scheduled ones. `move` and `resubmit` send "
            "them to `to` and remove them; `resubmit` also removes why they were dead-lettered, and counts. "
            "`deadLetter` dead-letters them. `reschedule` enqueues scheduled ones at another time.",
        },
        "entity": ENTITY,
        "to": {
            **ENTITY,
            "description": "A queue or topic. Default of `resubmit`: where the messages came from.",
        },
        "criteria": CRITERIA,
        "numbers": {
            "type": "array",
            "minItems": 1,
            "maxItems": NUMBERS_MAX,
            "items": SEQUENCE_NUMBER,
            "description": "Only messages with these sequence numbers.",
        },
        "group": GROUP,
        "edits": EDITS,
        "at": {**INSTANT, "description": "Of `reschedule`: when to enqueue them; a past time means now."},
        "shift": {
            "type": "number",
            "minimum": -SHIFT_S_MAX,
            "maximum": SHIFT_S_MAX,
            "description": "Of `reschedule`, instead of `at`: seconds to enqueue them later, or earlier.",
        },
        "reason": {**_TEXT, "description": "Of `deadLetter`."},
        "description": {**_TEXT, "description": "Of `deadLetter`."},
        "rate": RATE,
        "limit": LIMIT,
    },
    ["work", "entity"],
    description="What a job does.",
    examples=[{"work": "resubmit", "entity": "orders/$deadletterqueue", "rate": 100}],
)

JOB: Schema = record(
    {
        "id": {"type": "string"},
        "work": {"type": "string", "enum": list(WORKS)},
        "entity": {"type": "string"},
        "to": {"type": "string"},
        "criteria": CRITERIA,
        "group": GROUP,
        "numberCount": {**COUNT, "description": "How many sequence numbers its order has, if any."},
        "rate": RATE,
        "limit": LIMIT,
        "state": {
            "type": "string",
            "enum": ["running", "stopped", "interrupted", "done", "failed"],
            "description": "All but `running` and `done` can be resumed.",
        },
        "by": {"type": "string", "description": "The key or role that started or resumed it last."},
        "createdAt": INSTANT,
        "updatedAt": INSTANT,
        "done": COUNT,
        "of": {**COUNT, "description": "Absent until they are counted."},
        "left": COUNT,
        "perSecond": {"type": "number", "minimum": 0},
        "guarantee": {
            "type": "string",
            "description": "How often a message arrives, whatever is killed when.",
        },
        "problem": {"type": "string", "description": "Why it has stopped."},
    },
    ["id", "work", "entity", "state", "by", "createdAt", "updatedAt", "done"],
    description="A job.",
)

JOBS: Schema = record({"jobs": {"type": "array", "items": ref("Job")}})

NAMED: Final = {"JobOrder": ORDER, "Job": JOB, "Jobs": JOBS}


def preview(call: Call) -> Answer:
    """Count the messages of a job, and show some."""
    return _ordered(call, lambda order, source, grants: _previewed(call, order, source, grants))


def _previewed(call: Call, order: Mapping[str, Any], source: EntityView, grants: tuple[Grant, ...]) -> Answer:
    assert call.node is not None
    work = {**order["work"], "work": "preview", "of": count_of(source, call.node.address)}
    return streamed(call.exchange, work, grants)


def start(call: Call) -> Answer:
    """Start a job."""
    assert call.node is not None
    exchange, by = call.exchange, call.exchange.grant(Right.LISTEN, call.node.path).name
    return _ordered(
        call,
        lambda order, source, grants: Steer(
            exchange, "start", lambda job, owner: True, order=order, grants=lambda job: grants, by=by
        ),
    )


def _ordered(
    call: Call, then: Callable[[Mapping[str, Any], EntityView, tuple[Grant, ...]], Answer]
) -> Answer:
    """Read an order, look at its source and target, and go on. Raises: ArgumentInvalid, ..."""
    given, exchange, node = call.body, call.exchange, call.node
    assert node is not None
    shown_job, plan = _read(given, node)
    target = None if "to" not in shown_job else node_of(shown_job["to"])
    if "at" in given:
        _times(given)  # it may be refused
    grants = _grants(exchange, node, target)
    if given["work"] == "reschedule":
        grants = (exchange.grant(Right.SEND, node.path),)

    def found(effect: EntityFound) -> Answer:
        source = effect.entity
        if given["work"] != "reschedule":  # a topic has scheduled messages
            refusal = exchange.guarded(lambda: require_messages(source, node))
            if refusal is not None:
                return refusal
        if target is None:
            return then(_order(shown_job, plan, given, source), source, grants)

        def target_found(effect: EntityFound) -> Answer:
            refusal = exchange.guarded(lambda: _require_target(effect.entity, given))
            if refusal is not None:
                return refusal
            facts = _facts(plan, effect.entity)
            return then(_order(shown_job, {**plan, **facts}, given, source), source, grants)

        return Ask(exchange, LookUp(target.address, exchange.reply_to), target_found)

    return Ask(exchange, LookUp(node.address, exchange.reply_to), found)


def _order(
    shown_job: Mapping[str, Any], plan: Mapping[str, Any], given: Mapping[str, Any], source: EntityView
) -> dict[str, Any]:
    default = _DEFAULT_STATES.get(given["work"], _ACTIVE)
    states = [each for each in default if each in given.get("criteria", {}).get("states", default)]
    made: dict[str, Any] = {"work": "job", "plan": plan, "states": states}
    if given["work"] == "reschedule":
        made.update(_times(given), work="reschedule", mayDrop=source.description.requires_duplicate_detection)
    return {"shown": shown_job, "work": made}


def _times(given: Mapping[str, Any]) -> dict[str, int]:
    """Return when a job enqueues messages. Raises: ArgumentInvalid."""
    if "at" in given:
        return {"atMs": read_instant(given["at"], "The member 'at'")}
    return {"shiftMs": round(given["shift"] * 1000)}


def _read(given: Mapping[str, Any], node: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job as it is shown, and its plan. Raises: ArgumentInvalid."""
    work = given["work"]
    source = shown(node.address)
    shown_job = {"work": work, "entity": source, **{name: given[name] for name in _SHOWN if given.get(name)}}
    if "numbers" in given:
        shown_job["numberCount"] = len(given["numbers"])
    plan: dict[str, Any] = {
        "work": "purge" if work == "cancel" else work,
        "source": source,
        "criteria": read_criteria(given.get("criteria", {}), "criteria."),
        **{name: given[name] for name in ("numbers", "rate", "limit") if name in given},
    }
    if work in FORWARDS:
        if work == "move" and "to" not in given:
            raise ArgumentInvalid("The member 'to' is missing: say where to move the messages.")
        shown_job["to"] = plan["target"] = given.get("to", sends_to(source)).strip("/")
        plan["edits"] = _edits(given.get("edits", {}))
        plan["is_marked"] = work == "resubmit"
        if plan["target"].lower() == source.lower() and not given.get("edits"):
            raise ArgumentInvalid(
                "The members 'entity' and 'to' are the same: name another target, or edits."
            )
    for name in ("to", "edits"):
        if name in given and work not in FORWARDS:
            raise ArgumentInvalid(f"The member '{name}' has no meaning for the work {work}.")
    if (work == "reschedule") != (("at" in given) + ("shift" in given) == 1):
        raise ArgumentInvalid("The work reschedule, and no other, has one of the members 'at' and 'shift'.")
    for name in ("reason", "description"):
        if name in given:
            if work != "deadLetter":
                raise ArgumentInvalid(f"The member '{name}' requires the work deadLetter.")
            plan[name] = given[name]
    states = given.get("criteria", {}).get("states")
    allowed = _DEFAULT_STATES.get(work, _ACTIVE)
    if states is not None and not set(states) <= set(allowed):
        raise ArgumentInvalid(
            f"The member 'criteria.states' can have {', '.join(allowed)} for the work {work}."
        )
    if "limit" in given and work in _DEFAULT_STATES:
        raise ArgumentInvalid(f"The member 'limit' has no meaning for the work {work}.")
    if "group" in given:
        plan["by"], plan["group"] = read_by(given["group"]["by"], "group.by"), given["group"]["value"]
    return shown_job, plan


def _edits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return edits as the worker takes them. Raises: ArgumentInvalid."""
    found = {
        "set": given.get("set", {}),
        "remove": given.get("remove", []),
        "subject": given.get("subject"),
        "session_id": given.get("sessionId"),
        "ttl_ms": None if "timeToLive" not in given else ttl_ms(given["timeToLive"]),
    }
    try:
        Edits(**{**found, "remove": tuple(found["remove"])})
    except (EncodeError, ValueError, OverflowError) as failure:
        raise ArgumentInvalid(f"The member 'edits': messages cannot have this: {failure}.") from None
    return found


def _facts(plan: Mapping[str, Any], target: EntityView) -> dict[str, Any]:
    """Return what a plan must know of its target; a transaction is of one partition (wire contract 6)."""
    description = target.description
    made = Plan(work=plan["work"], namespace="", source="", target=plan["target"]).with_facts(
        by_transactions=not description.enable_partitioning,
        detects_duplicates=description.requires_duplicate_detection,
        keeps_ids=False,
    )
    names = ("by_transactions", "detects_duplicates", "has_new_ids")
    return {name: getattr(made, name) for name in names}


def _require_target(target: EntityView, given: Mapping[str, Any]) -> None:
    """Raise InvalidOperation if messages cannot be sent to an entity."""
    description = target.description
    if isinstance(description, SubscriptionDescription):
        raise InvalidOperation(f"'{description.name}' is a subscription: send to its topic.")


def _grants(exchange: ApiExchange, source: Node, target: Node | None) -> tuple[Grant, ...]:
    """Return the grants of a job. Raises: AuthorizationError, RightMissing."""
    listening = exchange.grant(Right.LISTEN, source.path)
    return (listening,) if target is None else (listening, exchange.grant(Right.SEND, target.path))


def _steered(do: Any) -> Callable[[Call], Answer]:
    """Return the handler of an operation on jobs that are there."""

    def handle(call: Call) -> Answer:
        exchange = call.exchange
        grant = exchange.own_grant()
        asked = node_of(call.given["entity"]).path if "entity" in call.given else ""

        def sees(job: Mapping[str, Any], owner: str) -> bool:
            is_own = Right.MANAGE in grant.rights or owner == grant.identity
            entity = job["entity"].lower()
            return is_own and grant.covers(entity) and within(entity, asked)

        def grants(job: Mapping[str, Any]) -> tuple[Grant, ...]:
            source = node_of(job["entity"])
            if job["work"] == "reschedule":
                return (exchange.grant(Right.SEND, source.path),)
            return _grants(exchange, source, node_of(job["to"]) if "to" in job else None)

        return Steer(exchange, do, sees, call.given.get("job", ""), grants=grants, by=grant.name)

    return handle


_ENTITY = Parameter(
    "entity", PATH_PARAMETERS["entity"].schema, "Only jobs of this entity, or of one below its path."
)
_OWN = (
    "Manage sees all jobs of what the token is for; any other right sees those of the same key. One that is "
    "made under the name of a removed key is another key."
)


def _operation(name: str, method: str, path: str, summary: str, do: str, **more: Any) -> Operation:
    return Operation(name, method, path, summary, None, _steered(do), _OWN, query=(_ENTITY,), **more)


OPERATIONS = (
    Operation(
        "previewJob",
        "POST",
        "/jobs/preview",
        "Count the messages of a job, and show some",
        Right.LISTEN,
        preview,
        f"{STREAM}Events: `progress`, and `end` with `count`, `states`, `examples`, up to ten messages, and "
        "`guarantee`.",
        body=ref("JobOrder"),
        body_bytes_max=BODY_BYTES_MAX,
        finds_entity=entity_of,
        streams=True,
    ),
    Operation(
        "startJob",
        "POST",
        "/jobs",
        "Start a job",
        Right.LISTEN,
        start,
        "It goes on when the client leaves, and beyond the expiry of its token. It does what `peeklock "
        "move`, `purge` and `dead-letters resubmit` do, with the rights that the key or roles of this "
        "request have at the time: when they are removed, or changed, it stops. After a restart of the "
        "broker it is `interrupted`, and can be resumed. To send needs the right Send on the target.",
        body=ref("JobOrder"),
        body_bytes_max=BODY_BYTES_MAX,
        finds_entity=entity_of,
        status=201,
        answer=ref("Job"),
    ),
    _operation(
        "listJobs", "GET", "/jobs", "List jobs, the newest first", "list", answer=ref("Jobs"), problems=()
    ),
    _operation("showJob", "GET", "/jobs/{job}", "Show a job", "show", answer=ref("Job"), problems=(404,)),
    _operation(
        "stopJob", "POST", "/jobs/{job}/stop", "Stop a job in order", "stop", answer=ref("Job"), status=202
    ),
    _operation(
        "resumeJob",
        "POST",
        "/jobs/{job}/resume",
        "Go on with a job, with the rights of this request",
        "resume",
        answer=ref("Job"),
        status=202,
    ),
    _operation("forgetJob", "DELETE", "/jobs/{job}", "Forget a job that has ended", "forget", status=204),
)
