"""Tests that the compiled form cannot pass, by the beginning of their names, each with the reason."""

from __future__ import annotations

_TRACES = "it watches calls of the core by a trace function, and compiled calls are not seen"
_SUBCLASSES = "it plants a class above a compiled one"
_TINY = "its small broker has commands that are none of the core's, which compiled code refuses"
_REPLACES = "it replaces a method that compiled code calls directly"

PURE_ONLY = {
    "tests/broker/handlers/test_purging.py::test_a_slice_looks_at_a_bounded_number_of_messages": _TRACES,
    "tests/broker/handlers/test_recovery.py::test_a_state_that_comes_as_a_plain_number": "the class refuses it",
    "tests/broker/handlers/test_transactions.py::test_an_enlist_takes_as_many_steps": _TRACES,
    "tests/engine/": _TINY,
    "tests/gateway/test_border.py": _TRACES,
    "tests/server/test_defects.py::test_a_defect_in_the_gateway_ends_its_connection": _REPLACES,
    "tests/simulation/test_bugs.py": _SUBCLASSES,
}
