"""Web tokens of an identity service: a credential gives one for Azure Service Bus, and later the next.

A credential is an object of `azure-identity`, or any other with its method `get_token`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from peeklock.client.errors import OptionError, ServiceBusError
from peeklock.client.token_file import NO_TOKEN, WebToken

SCOPE: Final = "https://servicebus.azure.net/.default"
"""What the token is for. Source: wire contract 1.7."""


class Credential(Protocol):
    """Gives tokens; a credential of `azure-identity` is one."""

    def get_token(self, *scopes: str) -> Any:
        """Return an object with the texts `token` and `expires_on`, UTC s."""


def web_token(credential: Credential) -> WebToken:
    """Return a token of a credential. Raises: ServiceBusError."""
    try:
        found = credential.get_token(SCOPE)
    except Exception as failure:  # of the credential's library, which need not be here
        why = str(failure).strip().partition("\n")[0] or type(failure).__name__
        text = f"the credential {type(credential).__name__} gives no token for Service Bus: {why}"
        raise ServiceBusError(NO_TOKEN, text, "", False) from failure
    return WebToken(found.token, int(found.expires_on) * 1000)


def entra_credential() -> Credential:
    """Return `DefaultAzureCredential`, which finds that of the machine, the pod or `az login`.

    Raises: OptionError: `azure-identity` is not installed.
    """
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise OptionError(
            'Entra needs azure-identity: install it with pip install "peeklock[entra]".'
        ) from None
    made: Credential = DefaultAzureCredential()
    return made
