"""docs/reference/api.md is what the table says, and the data plane is described as it is."""

from __future__ import annotations

from docs.api import PAGE
from peeklock.api.data_plane import PATHS
from peeklock.rest.paths import Form


def test_the_page_is_current() -> None:
    text = PAGE.file.read_text()
    assert text == PAGE.written(text), "run python -m docs.api"


def test_each_method_of_the_data_plane_is_described() -> None:
    methods = sorted(method.upper() for path in PATHS.values() for method in path)
    assert methods == sorted(method for form in Form for method in form.value.split(", "))
