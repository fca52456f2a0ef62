"""The documentation, the generators of its pages, and the `hooks` of its site.

api, settings, metrics  Pages with a part from a table of the code.
clients, compatibility  Pages from the tests and their results.
generated               What the first three share.
"""

from __future__ import annotations
