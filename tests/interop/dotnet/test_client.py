"""The player itself: names, the syntax of steps, the text of a failure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.types import Array, Long, Symbol
from tests.interop.dotnet import scenario
from tests.interop.dotnet.drivers import play_in_memory
from tests.interop.dotnet.scenario import load, names
from tests.interop.dotnet.stage import PlayFailed
from tests.interop.dotnet.words import BadWords, arrange, expand, read, split


def test_links_are_counted_as_the_client_counts_its_objects() -> None:
    player = play_in_memory(load("16-settlements-in-transactions")).player
    counted = re.compile(r"\d+:\d+:\d+")
    found = {label: counted.search(link.name) for label, link in player.links.items()}
    assert {label: match[0] for label, match in found.items() if match is not None} == {
        "CBS-sender": "0:1:2",
        "CBS-receiver": "0:1:2",
        "SND": "0:5:6",
        "RCV": "0:7:8",
        # A session, a link and a controller of transactions have 9, 10 and 11.
        "SND2": "0:12:13",
        "MGMT-sender": "0:14:15",
        "MGMT-receiver": "0:14:15",
        "MGMT2-sender": "0:18:19",
        "MGMT2-receiver": "0:18:19",
        "RCV2": "0:22:23",
    }


def test_every_scenario_is_read_and_has_a_title() -> None:
    loaded = [load(name) for name in names()]
    assert all(one.title and one.steps for one in loaded)
    assert len({one.name[:2] for one in loaded}) == len(loaded)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{k="a b", :n=long:5, l=[null, true]}', {"k": "a b", Symbol("n"): Long(5), "l": [None, True]}),
        ("array<long>[long:1, twice(2)]", Array(Long, [Long(1), Long(4)])),
        ("bin:0102", b"\1\2"),
    ],
)
def test_values_are_read(text: str, value: Any) -> None:
    assert read(text, lambda name, arguments: Long(2 * arguments[0])) == value


def test_steps_are_split_at_blanks_outside_of_brackets() -> None:
    words = split('-> ask MGMT peek {from="a b", n=[1, 2]} link=RCV')
    assert words == ["->", "ask", "MGMT", "peek", '{from="a b", n=[1, 2]}', "link=RCV"]
    assert arrange(words[2:]) == (["MGMT", "peek", '{from="a b", n=[1, 2]}'], {"link": "RCV"})
    assert expand("p9..p11") == ["p9", "p10", "p11"]
    with pytest.raises(BadWords):
        split("-> ask {open")


WRONG = [
    ("<- transfer RCV 1 id=m2", "message-id 'm1' where 'm2' was expected"),
    ("<- transfer RCV 2", "expected 2 deliveries on RCV, and nothing more came"),
    ("<- transfer RCV 1 app={k=int:1}", "k is None, not 1"),
    ("<- rejected SND 0 amqp:not-found", "expected rejected, not accepted()"),
    ("<- refused RCV amqp:not-found", "expected a detach of RCV"),
    ("-> dispose", "expected nothing else at the end, but there is a delivery on RCV"),
]


@pytest.mark.parametrize(("line", "text"), WRONG)
def test_a_failure_names_the_step_and_what_came(
    line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = (scenario.FOLDER / "05-peek-lock-without-prefetch.txt").read_text().splitlines()[:11]
    sent = [*beginning[:7], "-> send SND id=m1 body=5", "<- accepted SND 0"]
    received = ["-> put-token w-q", "-> begin 2", "-> attach RCV 2 receiver w-q", "-> flow RCV 1"]
    (tmp_path / "99-wrong.txt").write_text("\n".join([*sent, *received, line]))
    monkeypatch.setattr(scenario, "FOLDER", tmp_path)
    with pytest.raises(PlayFailed, match=re.escape(text)) as failed:
        play_in_memory(load("99-wrong"))
    assert f"scenario 99-wrong, line 14: {line}" in str(failed.value)
    assert "<- ch" in str(failed.value)
