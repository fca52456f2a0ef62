"""By which host and key a client finds its namespace, as on a development broker.

Owns: the accounts of the clients of both namespaces. Must not know: how a broker chooses.

Both namespaces have the usual key, with the same secret; each has one that bears its name besides. On the
shared host the second namespace is found by that name, and on hosts of its own with either key.
"""

from __future__ import annotations

from dataclasses import dataclass

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"

SHARED_HOST = "localhost"

FIRST, SECOND = "simulation", "second"
"""Names of the namespaces; the first one is the default."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a connection string says."""

    host: str = SHARED_HOST
    key_name: str = KEY_NAME
    key: str = KEY

    @property
    def resource(self) -> str:
        """What its tokens are for."""
        return f"sb://{self.host}/"


USUAL = Account()


def accounts_of(name: str) -> tuple[Account, ...]:
    """Return the accounts of a namespace."""
    if name == FIRST:
        return (USUAL,)
    return (
        Account(key_name=name),
        Account(host=f"{name}.localhost"),
        Account(host=f"{name}.servicebus.windows.net", key_name=name),
    )
