"""Tests that the compiled form cannot pass, by the beginning of their names, each with the reason."""

from __future__ import annotations

_TRACES = "it watches calls of the core by a trace function, and compiled calls are not seen"
_SUBCLASSES = "it plants a class above a compiled one"
_TINY = "its small broker has commands that are none of the core's, which compiled code refuses"
_REPLACES = "it replaces a method that compiled code calls directly"

_FIELDS = "it plants a wrong value in a field, which the class refuses"
_NUMBERS = "compiled objects hold numbers, not int objects"

_SENDING = "tests/gateway/links/test_sending.py"
_PURGING = "tests/broker/handlers/test_purging.py"
_RECOVERY = "tests/broker/handlers/test_recovery.py"
_DEFECTS = "tests/server/test_defects.py"
_FREEING = "tests/gateway/test_freeing.py"
_NO_REFERENCE = "no weak reference to a connection"

PURE_ONLY = {
    f"{_PURGING}::test_a_slice_looks_at_a_bounded_number_of_messages": _TRACES,
    f"{_RECOVERY}::test_a_state_that_comes_as_a_plain_number": "the class refuses it",
    "tests/broker/handlers/test_transactions.py::test_an_enlist_takes_as_many_steps": _TRACES,
    f"{_RECOVERY}::test_restored_records_share_their_numbers": _NUMBERS,
    f"{_RECOVERY}::test_equal_sizes_are_one_object": _NUMBERS,
    "tests/broker/queue/test_shared_record.py": _SUBCLASSES,
    "tests/broker/test_histories.py": _SUBCLASSES,
    "tests/client/test_page.py::test_each_public_name_has_a_docstring": "compiled classes have none",
    **{
        f"tests/engine/test_{name}.py": _TINY
        for name in ("driver", "engine", "late_reads", "reclaim", "topics")
    },
    "tests/engine/test_recovery_memory.py": _TINY,
    "tests/fuzz/test_valid_performatives.py::test_credit_past_32_bits_would_be_found": _REPLACES,
    f"{_SENDING}::test_the_bytes_of_a_transfer_are_scanned_once": _TRACES,
    "tests/gateway/test_border.py": _TRACES,
    f"{_FREEING}::test_a_connection_is_freed_at_each_end": _NO_REFERENCE,
    "tests/server/test_freeing.py::test_every_end_of_an_amqp_connection_frees_it": _NO_REFERENCE,
    "tests/gateway/test_outbox.py::test_links_that_wait_for_nothing_are_not_looked_at": _REPLACES,
    "tests/gateway/test_traced.py::test_a_defect_of": _FIELDS,
    "tests/gateway/test_under_way.py::test_what_counts_for_a_send": "its objects are smaller",
    "tests/store/backup/test_histories.py": _SUBCLASSES,
    "tests/store/sqlite/test_tail.py::test_skipping_the_check_of_the_chain_is_found": _REPLACES,
    f"{_DEFECTS}::test_a_defect_in_the_gateway_ends_its_connection": _REPLACES,
    f"{_DEFECTS}::test_bookkeeping_is_done_whatever_the_end_of_a_connection_meets": _REPLACES,
    "tests/server/shard/test_shard.py::test_time_does_not_go_back_after_commands_that_come": _REPLACES,
    "tests/server/test_lost_bodies.py::test_forwarding_a_dead_letter_without_a_body_is_found": _REPLACES,
    "tests/simulation/test_bugs.py": _SUBCLASSES,
}
