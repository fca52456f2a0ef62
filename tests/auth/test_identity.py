"""Whose a grant is."""

from __future__ import annotations

from peeklock.auth.rights import ALL_RIGHTS, Grant, Proof


def test_keys_of_one_name_are_told_apart_by_their_entity() -> None:
    of_all = Grant(ALL_RIGHTS, "", None, Proof("", "worker", "k"), "Worker")
    of_one = Grant(ALL_RIGHTS, "orders", None, Proof("orders", "worker", "k"), "Worker")
    assert (of_all.identity, of_one.identity) == ("Worker", "orders Worker")
    assert Grant(ALL_RIGHTS, "", None).identity == ""
