"""The pages of the operator: one table of path, who may see it, and what answers.

It knows no figure and no socket. A page is added by a row in `server.net.protocols`, or wherever the parts
that it shows are made. Its access is checked here, before its handler runs. A request with `api-version` is
for the administration: a queue may have the name of a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

from peeklock.admin.exchange import AdminContext, AdminRequest, Response
from peeklock.api.access import Access, PageExchange
from peeklock.api.problems import MethodNotAllowed

_NO_KEY = Response(401)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request whose key is enough for the page."""

    query: Mapping[str, list[str]]
    """Values by name."""
    headers: Mapping[str, str]
    """By name in lower case."""
    argument: str
    """The segment that the page's path leaves open, decoded; else empty."""
    sees_figures: bool
    """Whether figures may be shown to it; always so where the page asks for a key."""
    body: bytes
    exchange: PageExchange
    """Answers refusals: `exchange.problem(...)`, `exchange.refusal(...)`."""


@dataclass(frozen=True, slots=True)
class Page:
    """One method of one page."""

    path: str
    """Such as `/health`. One that ends with `/` takes one more segment, as does a `*` in it."""
    access: Access
    answer: Callable[[PageRequest], Awaitable[Response]]
    """May await, to give other work its turn. What it raises is a defect; the client gets 500."""
    method: str = "GET"
    """A GET answers HEAD too."""
    takes_body: bool = False


class OperatorPages:
    """The table of pages."""

    def __init__(self, pages: Iterable[Page], *, asks_for_keys: bool) -> None:
        """Make the table; `asks_for_keys`: whether clients need a secret at all."""
        self._asks_for_keys = asks_for_keys
        self._by_path: dict[str, dict[str, Page]] = {}
        for page in pages:
            methods = self._by_path.setdefault(page.path, {})
            methods[page.method] = page

    def wants(self, path: str, query: str) -> bool:
        """Return whether a request is for a page."""
        return self._find(path) is not None and "api-version" not in parse_qs(query, keep_blank_values=True)

    def takes_body(self, path: str, method: str) -> bool:
        """Return whether a page reads the body of a request."""
        found = self._find(path)
        page = None if found is None else found[0].get(method)
        return page is not None and page.takes_body

    def open_to_any_host(self, path: str) -> bool:
        """Return whether a page is shown whatever name the client has for us: probes use any."""
        found = self._find(path)
        return found is not None and all(page.access is Access.ANYBODY for page in found[0].values())

    async def answer(
        self,
        request: AdminRequest,
        admin_context: AdminContext,
        now_ms: int,
        *,
        known_host: bool,
        refused: Callable[[], object],
    ) -> Response:
        """Return the answer to a request for a page.

        `known_host`: whether the request's host is a name of this broker. `refused` is called for a bad key
        that is answered with less instead of 401.
        """
        exchange = PageExchange(admin_context, request, now_ms)
        found = self._find(request.path)
        assert found is not None  # `wants` was asked
        methods, argument = found
        page = methods.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            return exchange.refusal(MethodNotAllowed(request.method, _methods(methods)))
        sees_figures = known_host
        if self._asks_for_keys:
            refusal = _refusal(exchange, page.access)
            if refusal is not None and page.access is not Access.ANYBODY:
                return refusal
            if refusal is not None and exchange.token:
                refused()
            sees_figures = refusal is None
        query = parse_qs(request.query, keep_blank_values=True)
        return await page.answer(
            PageRequest(query, request.headers, argument, sees_figures, request.body, exchange)
        )

    def _find(self, path: str) -> tuple[dict[str, Page], str] | None:
        """Return the methods of a path, and its last segment where the page takes one."""
        decoded = unquote(path)
        if decoded in self._by_path:
            return self._by_path[decoded], ""
        head, slash, last = path.rpartition("/")
        methods = self._by_path.get(unquote(head) + slash) if last and head else None  # not all below `/`
        if methods is not None:
            return methods, unquote(last)
        above, slash, segment = head.rpartition("/")
        methods = self._by_path.get(f"{unquote(above)}/*/{unquote(last)}") if segment else None
        return None if methods is None else (methods, unquote(segment))


def _refusal(exchange: PageExchange, access: Access) -> Response | None:
    """Return the refusal of a request's key; None = it is enough, on an open page for the figures."""
    passed = Response(204)
    if access is Access.ANYBODY:
        if not exchange.token:
            return _NO_KEY  # nothing to log: probes have none
        access = Access.FIGURES

    def check() -> Response:
        exchange.allow(access)
        return passed

    found = exchange.guarded(check)
    return None if found is passed else found


def _methods(found: Mapping[str, Page]) -> list[str]:
    return [name for method in found for name in ((method, "HEAD") if method == "GET" else (method,))]
