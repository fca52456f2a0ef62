"""What a node has in the place of the default namespace while another node owns that.

It has the name and the keys of the default namespace, so that the node answers for itself: probes, figures,
the control socket. It has no entities, and no client is led to it.
"""

from __future__ import annotations

from dataclasses import replace

from peeklock.server.namespaces.served import Process, ServedNamespace
from peeklock.server.system.keys import NamespaceKeys


def stand_in(name: str, process: Process) -> ServedNamespace:
    """Return it, not open yet. Raises: KeysRefused."""
    settings = replace(process.settings, durability="memory", data=None, store=None, capture=None)
    made = ServedNamespace(name, process, settings, "default")
    made.stands_in = True
    return made


def follow_keys(served: ServedNamespace) -> None:
    """Read the keys of a namespace again, which another node may have changed. Raises: StoreError."""
    if isinstance(served.keys, NamespaceKeys):
        served.keys.follow()
