"""What a file is: a Config.json, an ARM template or a Terraform state; and its reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peeklock.config.file import FILE_BYTES_MAX, parse_config
from peeklock.config.form import ConfigError, load, shown
from peeklock.templates.arm import is_template, read_template
from peeklock.templates.found import Found
from peeklock.templates.terraform import is_state, read_state


def read_source(
    data: bytes, texts: Mapping[str, str] | None = None, parameters: bytes | None = None
) -> Found:
    """Return what a file defines.

    Args:
        data: its content.
        texts: values of parameters of an ARM template.
        parameters: content of a parameters file of an ARM template.

    Raises: ConfigError with all problems.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes")
    top = load(data)
    try:
        if is_template(top):
            return read_template(top, texts or {}, _parameters(parameters))
    except RecursionError as failure:
        raise ConfigError("the template is nested too deeply") from failure
    if texts or parameters is not None:
        raise ConfigError("is not an ARM template, and only such a template has parameters")
    if is_state(top):
        return read_state(top)
    if isinstance(top, dict) and "UserConfig" in top:
        return Found(parse_config(data))
    raise ConfigError(_not_known(top))


def _parameters(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return load(data)
    except ConfigError as failure:
        raise ConfigError(*(f"the parameters file: {problem}" for problem in failure.problems)) from failure


def _not_known(top: Any) -> str:
    """Return that this is nothing that can be read, and what it may be."""
    if isinstance(top, dict) and "planned_values" in top:
        return "is a plan of Terraform: take the state, `terraform state pull`"
    if isinstance(top, dict) and "$schema" in top and "parameters" in top:
        return "is a parameters file: give the template, and this file with --parameters"
    return (
        f"{shown(top)} is not a Config.json, an ARM template (`bicep build` makes one) or a Terraform state "
        f"(`terraform state pull`)"
    )
