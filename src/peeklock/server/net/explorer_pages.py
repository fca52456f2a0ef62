"""The pages that serve the explorer: a row for each of its files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from peeklock.admin.exchange import Response
from peeklock.api.access import Access
from peeklock.explorer.files import HEADERS, accepts_gzip, addresses, read
from peeklock.server.net.operator_pages import Page, PageRequest


def explorer_pages(*, asks_for_secret: bool) -> Iterator[Page]:
    """Yield the rows. They need no key: the page has no data, and asks the API with its user's."""
    for path, name in addresses().items():
        yield Page(path, Access.OWN_HOST, partial(_serve, name, asks_for_secret))


async def _serve(name: str, asks_for_secret: bool, request: PageRequest) -> Response:
    file = read(name, asks_for_secret=asks_for_secret)
    headers = (*HEADERS, ("ETag", file.etag))
    if file.is_current(request.headers.get("if-none-match", "")):
        return Response(304, headers=headers)
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(200, file.content_type, file.compressed, (*headers, ("Content-Encoding", "gzip")))
    return Response(200, file.content_type, file.content, headers)
