"""For tests of programs that use the broker, and of the broker itself: a broker in the process, a clock to
move, a wire in memory, a store that fails on demand.
"""

from __future__ import annotations
