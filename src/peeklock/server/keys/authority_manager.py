"""The authority of a namespace: its keys, the rules of its entities, web tokens.

It follows the file of `--keys` and the entities' rules; it must not know where other keys are kept.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

from peeklock.auth import Authority, OpenAuthority, Right, SasRule
from peeklock.auth.authority import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, WebTokens
from peeklock.broker.vocabulary.changes import Change, EntityRemoved, EntityStored
from peeklock.broker.vocabulary.descriptions import Description
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.server import log
from peeklock.server.follow import Outcome
from peeklock.server.keys.keys import GivenKeyFile
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.settings import AuthMode

_SECRETS: frozenset[AuthMode] = frozenset({"sas", "jwt"})


class AuthorityManager:
    """Makes the authority and keeps it up to date."""

    def __init__(
        self,
        modes: frozenset[AuthMode],
        authority: Authority | None,
        web_tokens: WebTokens | None = None,
        keys: Path | None = None,
        names: Iterable[str] = (),
    ) -> None:
        """Make the authority.

        Args:
            modes: how clients authenticate; empty = `development`.
            authority: one made elsewhere, instead of that of the `modes`.
            web_tokens: verifies JSON web tokens; None = none are accepted.
            keys: the file with the keys of `sas`; None = they are set with `set_rules`.
            names: of keys by which clients choose this namespace where the host names none.

        Raises: KeysRefused.
        """
        self._file: GivenKeyFile | None = None
        self._refused = False
        self._paths: dict[int, str] = {}  # by entity id, of entities with rules
        self.warning = ""
        """Printed at start; empty = none."""
        self.asks_for_secret = authority is not None or bool(modes & _SECRETS)
        """Whether clients need a secret: without one, any web page could use the broker."""
        self.on_rules: Callable[[], None] = lambda: None
        """Is called when rules have come or gone."""
        self.on_gone: Callable[[frozenset[str]], None] = lambda identities: None
        """Takes the identities whose keys were removed, see `Grant.identity`."""
        self.connection_string_key = ""
        """The part of a connection string that names a key, if it may be shown."""
        self.has_keys = authority is None and "off" not in modes and "sas" in modes
        """Whether it checks keys of the namespace."""
        if authority is not None:
            self.authority = authority
        elif "off" in modes:
            self.authority = OpenAuthority(SasRule(name, DEVELOPMENT_KEY) for name in names)
            self.warning = "authorization is off: every client that reaches this broker has all rights"
            self.connection_string_key = f"SharedAccessKeyName={DEVELOPMENT_KEY_NAME};SharedAccessKey=any;"
        elif not modes & _SECRETS:
            self.authority = Authority.development(*names)
            self.warning = "development mode: everybody knows this key, and it has all rights"
            self.connection_string_key = (
                f"SharedAccessKeyName={DEVELOPMENT_KEY_NAME};SharedAccessKey={DEVELOPMENT_KEY};"
            )
        else:
            self.authority = Authority(signatures="sas" in modes, web_tokens=web_tokens)
            if self.has_keys and keys is not None:
                self._file = GivenKeyFile(keys)
                self.authority.set_rules("", self._file.load())

    def set_rules(self, rules: Sequence[SasRule]) -> None:
        """Replace the keys of the namespace."""
        self._replace("", rules)

    def begin(self, entities: Iterable[EntityView]) -> None:
        """Add the rules of these entities."""
        for view in entities:
            self._set(view.entity_id, view.description)

    def take(self, changes: Iterable[Change]) -> None:
        """Follow changes that have become durable, in their order."""
        for change in changes:
            if isinstance(change, EntityStored):
                self._set(change.entity_id, change.description)
            elif isinstance(change, EntityRemoved) and change.entity_id in self._paths:
                self._replace(self._paths.pop(change.entity_id), ())

    async def look(self, at_once: bool) -> Outcome:
        """Follow the file of the keys; one with a fault changes nothing. It is always whole."""
        if self._file is None or not self._file.changed():
            return Outcome.REFUSED if self._refused else Outcome.UNCHANGED
        try:
            rules = self._file.load()
        except KeysRefused as failure:
            self._refused = True
            log.error("the keys stay as they were", {"reason": str(failure)})
            return Outcome.REFUSED
        self._refused = False
        self.set_rules(rules)
        log.info("keys followed", {"file": str(self._file.path), "rules": [rule.name for rule in rules]})
        return Outcome.FOLLOWED

    def _set(self, entity_id: int, description: Description) -> None:
        if description.authorization_rules:
            self._paths[entity_id] = description.name
        elif self._paths.pop(entity_id, None) is None:
            return  # it never had any: nearly all
        rules = [
            SasRule(rule.name, rule.primary_key, rule.secondary_key, frozenset(map(Right, rule.rights)))
            for rule in description.authorization_rules
        ]
        self._replace(description.name, rules)

    def _replace(self, path: str, rules: Sequence[SasRule]) -> None:
        gone = self.authority.set_rules(path, rules)
        self.on_rules()
        if gone:
            self.on_gone(gone)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach what listens on a host, a name or an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: no host can have this name
        return False  # the listener reports what is wrong with it
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
