"""A client of the administration without a wire: requests in, commands or answers out, effects in."""

from __future__ import annotations

import itertools
from typing import Any
from xml.etree import ElementTree

from peeklock.admin.api import Administration, AdminRequest, Pending, Response
from peeklock.admin.exchange import AdminContext
from peeklock.auth import ALL_RIGHTS, Authority, Right, SasRule, generate
from peeklock.broker.vocabulary.commands import ReplyTo
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits
from peeklock.config.hosts import HostNames

NOW_MS = 1_704_067_200_500  # 2024-01-01T00:00:00.500Z
REPLY_TO = ReplyTo(0, 0, 7)
ATOM = "{http://www.w3.org/2005/Atom}"
CONNECT = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"

PYTHON_ENTRY = (
    "<?xml version='1.0' encoding='utf-8'?>\n"
    '<ns0:entry xmlns:i="http://www.w3.org/2001/XMLSchema-instance" xmlns:ns0="http://www.w3.org/2005/Atom" '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    '<ns0:content type="application/xml">{}</ns0:content></ns0:entry>'
)


class Client:
    """Sends requests with a token of the given rule."""

    def __init__(self, limits: TierLimits = STANDARD, authority: Authority | None = None) -> None:
        self.logged: list[tuple[str, dict[str, Any]]] = []
        self.keys = itertools.count(1)
        self.authority = authority or Authority(
            [
                SasRule("root", "key", "second"),
                SasRule("watcher", "key", rights=ALL_RIGHTS - {Right.MANAGE}),
                SasRule("listener", "key", rights=frozenset({Right.LISTEN})),
            ]
        )
        self.admin = Administration(
            AdminContext(
                self.authority,
                tracking=lambda: "6c1b1f2e-0000-4000-8000-000000000001",
                keys=lambda: f"fresh key {next(self.keys)}",
                owns=HostNames(["broker.lan"]).owns,
                log=lambda event, fields: self.logged.append((event, fields)),
                name="home",
                limits=limits,
                created_at_ms=NOW_MS - 1000,
            )
        )
        self.token = generate("https://localhost:5300", "root", "key", NOW_MS + 60_000)

    def ask(self, method: str, target: str, body: str | bytes = b"", **headers: str) -> Response | Pending:
        path, _, query = target.partition("?")
        found = {"host": "localhost:5300", "authorization": self.token}
        found.update({name.replace("_", "-"): value for name, value in headers.items()})
        data = body.encode() if isinstance(body, str) else body
        return self.admin.handle(AdminRequest(method, path, query, found, data), REPLY_TO, NOW_MS)

    def command(self, *args: Any, **headers: str) -> Any:
        pending = self.ask(*args, **headers)
        assert isinstance(pending, Pending), pending
        return pending.command

    def answer(self, *args: Any, effect: Any = None, **headers: str) -> Response:
        answer = self.ask(*args, **headers)
        if effect is not None:
            assert isinstance(answer, Pending)
            answer = answer.render(effect)
        assert isinstance(answer, Response), answer
        return answer


def detail(response: Response) -> str:
    """The text of an error's body, its form checked."""
    assert response.content_type == "application/xml; charset=utf-8"
    root = ElementTree.fromstring(response.body)
    assert root.tag == "Error"
    assert [child.tag for child in root] == ["Code", "Detail"]
    assert root[0].text == str(response.status)
    return root[1].text or ""


def links(response: Response) -> list[str]:
    return [link.get("href") or "" for link in ElementTree.fromstring(response.body).findall(f"{ATOM}link")]
