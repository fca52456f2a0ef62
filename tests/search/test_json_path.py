"""Paths into JSON: what they find, what they compare, and how an error marks its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.search.errors import SearchError
from peeklock.search.json_path import COMPARISONS, JsonPath, Segment, parse, prefilter, read_json

STORE: dict[str, Any] = {
    "order": {"total": 101, "paid": True, "note": None, "a b": 1, "it's": 2},
    "items": [{"sku": "A1", "n": 1}, {"sku": "B2", "n": 2}, {"sku": "C3", "n": 3.5}],
    "names": ["x", "y", "z"],
    "größe": 7,
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$.order.total", [101]),
        ("$.order.note", [None]),
        ("$.order.none", []),
        ("$['order']['a b']", [1]),
        (r"$.order['it\'s']", [2]),
        (r'$.order["it\u0027s"]', [2]),
        ("$.größe", [7]),
        (r"$['gr\u00f6\u00dfe']", [7]),
        ("$.items[0].sku", ["A1"]),
        ("$.items[-1].sku", ["C3"]),
        ("$.items[3]", []),
        ("$.items[*].n", [1, 2, 3.5]),
        ("$.items.*.n", [1, 2, 3.5]),
        ("$.names[1:]", ["y", "z"]),
        ("$.names[:-1]", ["x", "y"]),
        ("$.names[::-1]", ["z", "y", "x"]),
        ("$.names[::0]", []),
        ("$.names[0,2]", ["x", "z"]),
        ("$ .names [ 0 , 2 ]", ["x", "z"]),
        ("$..sku", ["A1", "B2", "C3"]),
        ("$..[0]", ["x", STORE["items"][0]]),
        ("$.order.total.x", []),
        ("$.names.x", []),
        ("$.order[0]", []),
        ("$", [STORE]),
    ],
)
def test_a_path_finds_values(text: str, found: list[Any]) -> None:
    """Source: RFC 9535, 2.1.3, 2.3, 2.5."""
    key = json.dumps
    assert sorted(map(key, parse(text).find(STORE))) == sorted(map(key, found))


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("$.order.total > 100", True),
        ("$.order.total >= 101.0", True),
        ("$.order.total == 101.0", True),
        ("$.order.total == 1.01e2", True),
        ("$.order.total < 101", False),
        ("$.order.total != 101", False),
        ("$.order.total == '101'", False),
        ("$.order.total != '101'", True),
        ("$.order.total < '200'", False),
        ("$.order.paid == true", True),
        ("$.order.paid == 1", False),
        ("$.order.paid >= true", True),
        ("$.order.paid > false", False),
        ("$.order.note == null", True),
        ("$.order.none == null", False),
        ("$.order.none != 1", False),
        ('$.items[*].sku == "A1"', True),
        ('$.items[*].sku == "Z9"', False),
        ('$.items[*].sku != "A1"', True),
        ("$.names[0] < 'y'", True),
        (r'$.names[0] == "\u0078"', True),
        ("$.order == 1", False),
        ("$.order.total>-1", True),
    ],
)
def test_a_comparison_is_true_of_one_of_the_values(text: str, is_true: bool) -> None:
    """Source: RFC 9535, 2.3.5.2.2; of several values: our choice."""
    assert parse(text).matches(STORE) is is_true


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("", 0, "expected '$', found the end"),
        ("order.total", 0, "expected '$', found 'o'"),
        ("$.order.total = 1", 14, "; == compares"),
        ("$.items[?@.n > 1]", 8, "; a comparison follows the path"),
        ("$.items[01]", 9, "expected ']' or ',', found '1'"),
        ("$.items[", 8, "found the end"),
        ("$.a ==", 6, "a number or true, false or null, found the end"),
        ("$.a == b", 7, "found 'b'"),
        ("$. a", 1, "found '.'"),
        ("$.a > 1 2", 8, "expected the end, found '2'"),
        (r"$['\x']", 3, "unknown escape"),
        (r'$["\u12"]', 3, "unknown escape"),
        ("$[9007199254740992]", 2, "the index is too large"),
    ],
)
def test_an_error_marks_its_place(text: str, position: int, what: str) -> None:
    with pytest.raises(SearchError) as raised:
        parse(text)
    assert (raised.value.criterion, raised.value.position) == ("json_path", position)
    assert what in raised.value.what
    first, line, caret = str(raised.value).split("\n")
    assert first.endswith(f"at position {position + 1}:")
    assert line[caret.index("^") :][:1] == text[position : position + 1]


def test_a_long_path_is_refused() -> None:
    parse("$" + ".a" * 511)
    with pytest.raises(SearchError, match="1025 characters; the limit is 1024"):
        parse("$" + ".a" * 512)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000, b"1" * 10_000], ids=repr
)
def test_a_body_that_is_not_json_is_no_document(body: bytes) -> None:
    assert read_json(body) == (False, None)


def test_repeated_descents_look_at_each_value_once() -> None:
    document: Any = 1
    for _ in range(300):
        document = [document]
    path = JsonPath((Segment((None,), deep=True),) * 20, "==", 2)
    assert not path.matches(document)


NAMES = st.sampled_from(["a", "b", "c d", "é", "'", ":", ",", '"', "\n"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", 1.5])
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
)
ENDS = st.none() | st.integers(-3, 3)
SELECTORS = st.none() | NAMES | st.integers(-3, 3) | st.builds(slice, ENDS, ENDS, ENDS)
SEGMENTS = st.lists(
    st.builds(Segment, st.lists(SELECTORS, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=4
)
PATHS = st.builds(JsonPath, SEGMENTS.map(tuple)) | st.builds(
    JsonPath, SEGMENTS.map(tuple), st.sampled_from(sorted(COMPARISONS)), SCALARS
)


def naive(segments: tuple[Segment, ...], value: Any) -> list[Any]:
    """Return what a path finds, as the RFC defines it: one segment after the other, by recursion."""
    if not segments:
        return [value]
    first, *rest = segments
    found: list[Any] = []
    for selector in first.selectors:
        if isinstance(value, dict):
            keys = list(value) if selector is None else [selector]
            found += [value[key] for key in keys if isinstance(key, str) and key in value]
        elif isinstance(value, list):
            if selector is None:
                places = list(range(len(value)))
            elif isinstance(selector, slice):
                places = [] if selector.step == 0 else list(range(len(value)))[selector]
            else:
                places = [selector] if isinstance(selector, int) else []
                places = [place for place in places if -len(value) <= place < len(value)]
            found += [value[place] for place in places]
    after = [each for one in found for each in naive(tuple(rest), one)]
    if first.deep and isinstance(value, dict | list):
        below = value.values() if isinstance(value, dict) else value
        after += [each for one in below for each in naive(segments, one)]
    return after


def written(path: JsonPath) -> str:
    """Return a path as text."""

    def selector(one: Any) -> str:
        if isinstance(one, slice):
            return ":".join("" if each is None else str(each) for each in (one.start, one.stop, one.step))
        return "*" if one is None else json.dumps(one)

    segments = (
        f"{'..' if each.deep else ''}[{', '.join(map(selector, each.selectors))}]" for each in path.segments
    )
    comparison = "" if path.operator is None else f" {path.operator} {json.dumps(path.literal)}"
    return f"${''.join(segments)}{comparison}"


@given(DOCUMENTS, PATHS)
def test_a_path_finds_what_the_definition_finds(document: Any, path: JsonPath) -> None:
    expected = {json.dumps(each) for each in naive(path.segments, document)}
    assert {json.dumps(each) for each in path.find(document)} == expected
    if path.operator is None:
        assert path.matches(document) is bool(expected)
    else:
        compare = COMPARISONS[path.operator]
        assert path.matches(document) is any(compare(json.loads(each), path.literal) for each in expected)


@given(PATHS)
def test_a_written_path_is_read_again(path: JsonPath) -> None:
    assert parse(written(path)) == path


@given(st.text(st.sampled_from("$.[]*ab'\"\\0:1,=<> \u00e9\n"), max_size=12) | st.text(max_size=8))
def test_any_text_is_a_path_or_an_error(text: str) -> None:
    try:
        parse(text)
    except SearchError as error:
        place = error.position
    else:
        place = 0
    assert place is not None
    assert 0 <= place <= len(text)


@given(DOCUMENTS, PATHS, st.booleans(), st.sampled_from([(",", ":"), (" ,\n", " :\t")]))
def test_what_matches_passes_the_prefilter(
    document: Any, path: JsonPath, is_ascii: bool, separators: tuple[str, str]
) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii, separators=separators)
    assert prefilter(path)(text) or not path.matches(document)


@given(st.text(st.sampled_from('{}[]",:ab1 \\-tn'), max_size=20), PATHS)
def test_any_text_passes_the_prefilter_or_not(text: str, path: JsonPath) -> None:
    is_json, document = read_json(text.encode())
    assert prefilter(path)(text) or not (is_json and path.matches(document))


@pytest.mark.parametrize(
    "path", ["$.order.none", "$.order.total > 101", "$..sku == 'D4'", "$.items == 1", "$.none[0] == 1"]
)
def test_the_prefilter_spares_the_decoding(path: str) -> None:
    assert not prefilter(parse(path))(json.dumps(STORE, ensure_ascii=False).replace("\\", ""))
