"""The configuration file: the emulator's Config.json, read strictly, and written.

Owns: the file's form in both directions, and its errors, each naming the JSON path of what is wrong. Must not
know: what the file asks of the broker (`reconcile`), ranges of values (`broker.validation`). Pure but for
reading the file.

The form is that of the public Service Bus emulator (its `Schema/Config-schema.json`):
`UserConfig.Namespaces[0].{Name, Queues[].{Name, Properties}, Topics[]}` and `UserConfig.Logging.Type`. Three
differences, on purpose: a setting that the file leaves out gets the service's default (MaxDeliveryCount 10,
not the emulator's 3); ranges are the service's, so that a queue is the same here as in Azure; settings that
the emulator's schema lacks go by their names in the administration API. `Logging` is checked and has no
effect: log lines go to standard error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peeklock.admin.durations import format_duration, parse_duration
from peeklock.broker.descriptions import EntityStatus, QueueDescription

FILE_BYTES_MAX = 64 * 1024 * 1024
"""10,000 entities, the service's limit, at 6 KiB each: every setting, and metadata of 1,024 characters of 4
bytes. Our choice."""

PROBLEMS_MAX = 50
"""Problems told at once. Our choice: more help nobody."""

EMULATOR_NAMESPACE = "sbemulatorns"
"""The only name of a namespace that the emulator takes; ours too when nobody says otherwise."""


class ConfigError(Exception):
    """The file cannot be followed; a line for each problem, beginning with its JSON path."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems[:PROBLEMS_MAX]))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One queue of the file."""

    path: str
    """Where it stands: `UserConfig.Namespaces[0].Queues[1]`."""
    name: str
    settings: Mapping[str, Any]
    """Field of QueueDescription -> value, only those that the file names."""

    @property
    def description(self) -> QueueDescription:
        """The queue as a new one would be."""
        return QueueDescription(self.name, **self.settings)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file's content."""

    namespace: str
    queues: tuple[QueueConfig, ...]


def read_config(file: Path) -> Config:
    """Read a configuration file. Raises: ConfigError (also for a file that cannot be read)."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as failure:
        raise ConfigError(f"cannot be read: {failure.strerror or failure}") from failure
    return parse_config(data)


def parse_config(data: bytes) -> Config:
    """Read a configuration. Raises: ConfigError naming everything that is wrong."""
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes")
    try:
        top = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_Object, parse_constant=_no_constant)
    except UnicodeDecodeError as failure:
        raise ConfigError(f"byte {failure.start}: not UTF-8") from failure
    except json.JSONDecodeError as failure:
        raise ConfigError(
            f"line {failure.lineno} column {failure.colno}: not JSON: {failure.msg}"
        ) from failure
    except RecursionError as failure:
        raise ConfigError("not JSON: nested too deeply") from failure
    except ValueError as failure:
        raise ConfigError(f"not JSON: {failure}") from failure
    return _Reader().read(top)


def format_config(queues: Iterable[QueueDescription]) -> str:
    """Write the configuration that these queues agree with, by name.

    Defaults are left out, so that what somebody has set is what there is to read, and so that the file fits
    the emulator's schema, which knows neither the largest time span nor a duplicate window of 10 minutes.
    MaxDeliveryCount always stands there, since left out it is 3 in the emulator. Source: our choice.
    """
    named = sorted(queues, key=lambda queue: (queue.name.lower(), queue.name))
    entries = [{"Name": queue.name, "Properties": _properties(queue)} for queue in named]
    namespace = {"Name": EMULATOR_NAMESPACE, "Queues": entries, "Topics": []}
    user = {"Namespaces": [namespace], "Logging": {"Type": "Console"}}
    return json.dumps({"UserConfig": user}, indent=2, ensure_ascii=False) + "\n"


def _properties(queue: QueueDescription) -> dict[str, Any]:
    default = QueueDescription(queue.name)
    return {
        key: form.write(value)
        for key, (field, form) in QUEUE_PROPERTIES.items()
        if (value := getattr(queue, field)) != getattr(default, field) or key == "MaxDeliveryCount"
    }


# The form of the file


class _Object(dict[str, Any]):
    """A JSON object that remembers keys given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice: list[str] = []
        if len(self) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in self.twice:
                    self.twice.append(key)
                seen.add(key)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_shown(value)} is not a whole number")
    return value


def _duration(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not an ISO 8601 duration such as PT1M, in quotation marks")
    return parse_duration(value)


def _entity_name(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'{_shown(value)} is not a name in quotation marks ("" for none)')
    if value and not _is_name(value):
        raise ValueError(f"{_shown(value)} is not {_NAME_RULE}")
    return value or None


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'{_shown(value)} is not a text in quotation marks ("" for none)')
    return value or None


def _status(value: Any) -> EntityStatus:
    for status in EntityStatus:
        if status.value == value:
            return status
    raise ValueError(f"{_shown(value)} is none of {', '.join(repr(status.value) for status in EntityStatus)}")


@dataclass(frozen=True, slots=True)
class _Form:
    """How the values of a setting stand in the file."""

    read: Callable[[Any], Any]
    """From JSON. Raises: ValueError."""
    write: Callable[[Any], Any] = lambda value: value
    """To JSON; never asked for a default, so not for None."""


_BOOLEAN = _Form(_boolean)
_WHOLE_NUMBER = _Form(_whole_number)
_DURATION = _Form(_duration, format_duration)
_ENTITY_NAME = _Form(_entity_name)
_TEXT = _Form(_text)
_STATUS = _Form(_status, lambda status: status.value)

QUEUE_PROPERTIES: dict[str, tuple[str, _Form]] = {
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _DURATION),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_expiration", _BOOLEAN),
    "DefaultMessageTimeToLive": ("default_ttl_ms", _DURATION),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", _DURATION),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOLEAN),
    "EnableExpress": ("enable_express", _BOOLEAN),
    "EnablePartitioning": ("enable_partitioning", _BOOLEAN),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _ENTITY_NAME),
    "ForwardTo": ("forward_to", _ENTITY_NAME),
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _WHOLE_NUMBER),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _WHOLE_NUMBER),
    "MaxSizeInMegabytes": ("max_size_mb", _WHOLE_NUMBER),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOLEAN),
    "RequiresSession": ("requires_session", _BOOLEAN),
    "Status": ("status", _STATUS),
    "UserMetadata": ("user_metadata", _TEXT),
}
"""Key in the file -> field of QueueDescription and its form."""

_LOGGING_TYPES = ("File", "Console", "File,Console", "Console,File")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", re.ASCII)
_NAME_CHARACTERS_MAX = 260
_NAME_RULE = (
    f"a name: 1 to {_NAME_CHARACTERS_MAX} of A-Z, a-z, 0-9 and ._-/, the first and the last a letter or digit"
)


def _is_name(text: str) -> bool:
    return len(text) <= _NAME_CHARACTERS_MAX and _NAME.fullmatch(text) is not None


class _Reader:
    """Walks the file and collects its problems."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def read(self, top: Any) -> Config:
        user: Mapping[str, Any] = {}
        if (root := self._object(top, "", ("UserConfig",), required=("UserConfig",))) is not None:
            if "UserConfig" in root:
                known = ("Namespaces", "Logging")
                user = self._object(root["UserConfig"], "UserConfig", known, required=("Namespaces",)) or {}
        config = Config("", ())
        if "Namespaces" in user:
            namespaces = self._array(user["Namespaces"], "UserConfig.Namespaces")
            if namespaces is not None and len(namespaces) != 1:
                self._problem(
                    "UserConfig.Namespaces", f"holds {len(namespaces)} namespaces; exactly one is served"
                )
            elif namespaces:
                config = self._namespace(namespaces[0], "UserConfig.Namespaces[0]")
        if "Logging" in user:
            self._logging(user["Logging"], "UserConfig.Logging")
        if self._problems:
            raise ConfigError(*self._problems)
        return config

    def _namespace(self, value: Any, path: str) -> Config:
        namespace = self._object(value, path, ("Name", "Queues", "Topics"), required=("Name",))
        if namespace is None:
            return Config("", ())
        name = self._name(namespace, path)
        queues: list[QueueConfig] = []
        first_at: dict[str, str] = {}
        for index, item in enumerate(self._array(namespace.get("Queues", []), f"{path}.Queues") or ()):
            queue = self._queue(item, f"{path}.Queues[{index}]")
            if queue is None:
                continue
            other = first_at.setdefault(queue.name.lower(), queue.path)
            if other != queue.path:
                self._problem(f"{queue.path}.Name", f"{queue.name!r} is the name of {other} already")
            queues.append(queue)
        if self._array(namespace.get("Topics", []), f"{path}.Topics"):
            self._problem(f"{path}.Topics", "topics are not offered yet: leave the list empty")
        return Config(name or "", tuple(queues))

    def _queue(self, value: Any, path: str) -> QueueConfig | None:
        queue = self._object(value, path, ("Name", "Properties"), required=("Name",))
        if queue is None:
            return None
        name = self._name(queue, path)
        settings: dict[str, Any] = {}
        where = f"{path}.Properties"
        properties = self._object(queue.get("Properties", _Object([])), where, tuple(QUEUE_PROPERTIES))
        for key, given in (properties or {}).items():
            if key in QUEUE_PROPERTIES:
                field, form = QUEUE_PROPERTIES[key]
                try:
                    settings[field] = form.read(given)
                except ValueError as failure:
                    self._problem(f"{where}.{key}", str(failure))
        return None if name is None else QueueConfig(path, name, settings)

    def _logging(self, value: Any, path: str) -> None:
        logging = self._object(value, path, ("Type",), required=("Type",))
        if logging is not None and "Type" in logging and logging["Type"] not in _LOGGING_TYPES:
            self._problem(
                f"{path}.Type", f"{_shown(logging['Type'])} is none of {', '.join(map(repr, _LOGGING_TYPES))}"
            )

    def _name(self, holder: Mapping[str, Any], path: str) -> str | None:
        if "Name" not in holder:
            return None
        name = holder["Name"]
        if not isinstance(name, str) or not _is_name(name):
            self._problem(f"{path}.Name", f"{_shown(name)} is not {_NAME_RULE}")
            return None
        return name

    def _object(
        self, value: Any, path: str, known: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> Mapping[str, Any] | None:
        if not isinstance(value, _Object):
            self._problem(path, f"{_shown(value)} is not an object in braces")
            return None
        for key in value:
            if key not in known:
                self._problem(_join(path, key), f"unknown key; {_hint(key, known)}")
        for key in value.twice:
            self._problem(_join(path, key), "given more than once")
        for key in required:
            if key not in value:
                self._problem(_join(path, key), "missing")
        return value

    def _array(self, value: Any, path: str) -> list[Any] | None:
        if not isinstance(value, list):
            self._problem(path, f"{_shown(value)} is not a list in brackets")
            return None
        return value

    def _problem(self, path: str, what: str) -> None:
        self._problems.append(f"{path}: {what}" if path else f"the file: {what}")


def _join(path: str, key: str) -> str:
    shown = key if re.fullmatch(r"[A-Za-z0-9_$-]{1,100}", key) else json.dumps(key[:100])
    return f"{path}.{shown}" if path else shown


def _hint(key: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key[:100].lower(), [name.lower() for name in known], n=1)
    for name in known:
        if near and name.lower() == near[0]:
            return f"did you mean {name}?"
    return f"known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    """Show a JSON value shortly."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "...")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."
