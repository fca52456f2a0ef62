"""The line between two nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.cluster.hello import AMQP, CONTROL, HTTP, PING, Hello, HelloInvalid, read

HELLOS = st.builds(
    Hello,
    st.sampled_from([AMQP, HTTP, CONTROL, PING]),
    st.text(),
    st.text(),
    st.integers(0, 65535),
    st.booleans(),
    st.binary(),
)


@given(HELLOS)
def test_a_line_is_read_as_it_was_written(hello: Hello) -> None:
    line = hello.line()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert read(line[:-1]) == hello


@given(st.binary())
def test_any_other_line_is_refused(line: bytes) -> None:
    with pytest.raises(HelloInvalid):
        read(line)


@pytest.mark.parametrize(
    "changed", [b'"kind":"smtp"', b'"store":1', b'"port":"x"', b'"tls":1', b'"answered":"x"', b'"host":null']
)
def test_a_value_of_another_kind_is_refused(changed: bytes) -> None:
    name = changed.split(b":")[0]
    parts = Hello(AMQP, "default", "h", 1).line().strip()[1:-1].split(b",")
    line = b"{" + b",".join(changed if part.startswith(name) else part for part in parts) + b"}"
    with pytest.raises(HelloInvalid):
        read(line)
