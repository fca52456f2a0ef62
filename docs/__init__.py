"""The documentation, the generators of pages (`api`, `clients`, `compatibility`, `metrics`, `settings`), and the
`hooks` of its site.
"""

from __future__ import annotations
