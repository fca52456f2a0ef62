"""The documentation, and the generator of the part that comes from the tests (`compatibility`)."""

from __future__ import annotations
