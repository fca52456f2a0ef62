"""The name of the default namespace, as a fact of the process.

A command asks for it where no broker runs. A start may give the namespace another name: its keys go with it.
"""

from __future__ import annotations

from typing import Any

from peeklock.broker.entities.validation import is_name
from peeklock.server.system import keys
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreDamaged

FACT = "default-namespace"


def default_name(system: SystemStore) -> str | None:
    """Return the name at the last start; None = there was none. Raises: StoreDamaged."""
    found = system.get(FACT)
    if found is None or (isinstance(found, str) and is_name(found)):
        return found
    raise StoreDamaged(f"the fact {FACT} of the process cannot be read: it must be a name")


async def set_default_name(system: SystemStore, name: str) -> None:
    """Keep the name; under another name than before the namespace keeps its keys. Raises: StoreError."""
    before = default_name(system)
    if before == name:
        return
    values: dict[str, Any] = {FACT: name}
    if before is not None and before.lower() != name.lower():
        old, new = keys.fact_key(before), keys.fact_key(name)
        if system.get(new) is None and (kept := system.get(old)) is not None:
            values.update({new: kept, old: None})
    await system.put(values)
