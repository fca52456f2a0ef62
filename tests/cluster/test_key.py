"""The secret of a cluster."""

from __future__ import annotations

import pytest

from peeklock.cluster.key import ClusterKey, KeyUnusable


def test_the_same_secret_has_the_same_digest_whatever_is_around_it() -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    assert ClusterKey(secret).digest() == ClusterKey(b" " + secret + b"\n").digest()
    assert ClusterKey(secret).digest() != ClusterKey(secret + b"0").digest()


def test_each_use_has_a_key_of_its_own() -> None:
    key = ClusterKey(b"x" * 32)
    assert len({key.derived("one"), key.derived("two"), b"x" * 32}) == 3


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_a_file_that_is_no_secret_is_refused(content: bytes) -> None:
    with pytest.raises(KeyUnusable, match="openssl rand -base64 32"):
        ClusterKey(content)
