"""For tests of programs that use the broker, and of the broker itself.

clock      `ManualClock`: a clock that only the test moves.
faults     `FaultyStore`: a store whose commits fail on demand.
inprocess  `InProcessBroker`: a whole broker in the calling thread.
program_tests  A broker for tests of a program, and a namespace for each.
pytest_plugin  Fixtures for both.
pump       Runs a driver to the end in the calling thread.
served     `ServedBroker`: a broker on a port, in a thread, with a clock to move.
wire       `MemoryWire`: a connection in memory with delays and breaks.
"""

from __future__ import annotations
