"""The documentation, the generators of pages (`api`, `clients`, `compatibility`), the `hooks` of its site."""

from __future__ import annotations
