"""The files of the page: their table, headers and sums, and that the policy finds nothing to forbid."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib

import pytest

from peeklock.explorer.files import CONTENT_TYPES, FOLDER, PAGE, POLICY, accepts_gzip, addresses, read

TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGE.rglob("*") if path.suffix in CONTENT_TYPES}
OWN = {path: text for path, text in TEXTS.items() if path.parent.name != "vendor"}


def test_the_document_is_at_the_root_and_all_else_in_the_folder() -> None:
    found = addresses()
    assert found["/"] == "index.html"
    assert found[FOLDER + "views/overview.js"] == "views/overview.js"
    assert {path for path in found if not path.startswith(FOLDER)} == {"/"}
    assert len(found) == len(TEXTS) + 1  # the joined modules


@pytest.mark.parametrize("name", addresses().values())
def test_a_file_is_read_with_its_validator_and_compressed(name: str) -> None:
    file = read(name)
    assert gzip.decompress(file.compressed) == file.content
    if not name.endswith(("js", "mjs")):
        assert file.content == (PAGE / name).read_bytes()
    assert re.fullmatch('W/"[0-9a-f]{32}"', file.etag)
    assert file.is_current(f'"other", {file.etag}')
    assert file.is_current("*")
    assert not file.is_current("")


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip, deflate, br", True),
        ("GZIP;q=0.5", True),
        ("x-gzip", True),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("", False),
    ],
)
def test_gzip_is_for_those_who_take_it(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


def test_the_policy_allows_no_code_in_the_document_and_no_other_host() -> None:
    directives = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert "unsafe" not in POLICY


def test_the_page_has_no_inline_code_and_no_address_of_another_host() -> None:
    for path, text in OWN.items():
        assert (
            re.findall(r"innerHTML|dangerouslySet|localStorage|sessionStorage|document\.cookie", text) == []
        ), path
        assert re.findall(r"\beval\(|new Function", text) == [], path
        hosts = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert hosts == set(), path
    document = TEXTS[PAGE / "index.html"]
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", document) == []


def test_what_is_vendored_is_what_was_published_and_has_its_licence() -> None:
    vendor = PAGE / "vendor"
    files = tomllib.loads((vendor / "vendored.toml").read_text())["file"]
    assert {file["name"] for file in files} == {path.name for path in vendor.glob("*.mjs")}
    licences = (vendor / "licences.txt").read_text()
    for file in files:
        content = (vendor / file["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        published = content + file.get("left_out", "").encode()
        if "replaced" in file:
            before, after = (text.encode() for text in file["replaced"])
            assert published.count(after) == 1
            published = published.replace(after, before)
        assert hashlib.sha256(published).hexdigest() == file["published_sha256"]
        assert file["name"] in licences


def test_the_modules_import_what_is_there() -> None:
    for path, text in OWN.items():
        if path.suffix != ".js":
            continue
        for wanted in re.findall(r'(?:from|import)\s*\(?["\'](\.[^"\'$]+)["\']', text):
            assert (path.parent / wanted).resolve() in TEXTS, (path, wanted)


def test_the_document_says_whether_a_secret_is_asked_for() -> None:
    assert b"data-secret" not in read("index.html", asks_for_secret=True).content
    assert b'<html data-secret="none" lang="en">' in read("index.html", asks_for_secret=False).content
