"""Texts of scenarios: parameters filled in, and the short form of generation IDs written out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WHOLE = re.compile(r"\$([a-z][a-z0-9_]*)")
_INSIDE = re.compile(r"\$\{([a-z][a-z0-9_]*)\}")
_ID = re.compile(r"(\d+)/(\d+)/(\d+)")
_ID_INSIDE = re.compile(r"\{(\d+)/(\d+)/(\d+)\}")

BUILT_IN: Mapping[str, Any] = {"null": None}
"""TOML has no null: `$null` stands for it."""


class ScenarioError(ValueError):
    """A scenario or a state that breaks the rules of SCENARIOS.md. The message says where and why."""


def fill(value: Any, parameters: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """`value` with every parameter replaced and every short generation ID written out, and the names that were used.

    Raises `ScenarioError` for a parameter that `parameters` lacks.
    """
    used: set[str] = set()
    return _filled(value, {**parameters, **BUILT_IN}, used), used - set(BUILT_IN)


def generation_id(incarnation: int, step: int, attempt: int) -> str:
    """The ID of L-7."""
    return f"{incarnation:06d}-{step:012d}-{attempt}"


def _filled(value: Any, parameters: Mapping[str, Any], used: set[str]) -> Any:
    if isinstance(value, Mapping):
        return {_key(key, parameters, used): _filled(item, parameters, used) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, parameters, used) for item in value]
    return _text(value, parameters, used) if isinstance(value, str) else value


def _text(text: str, parameters: Mapping[str, Any], used: set[str]) -> Any:
    if whole := _WHOLE.fullmatch(text):
        return _filled(_parameter(whole[1], parameters, used), BUILT_IN, used)
    return _key(text, parameters, used)


def _key(text: str, parameters: Mapping[str, Any], used: set[str]) -> str:
    """Keys are no parameters as a whole: those of encoded values start with `$` too."""
    text = _INSIDE.sub(lambda match: str(_parameter(match[1], parameters, used)), text)
    if whole := _ID.fullmatch(text):
        return _id(whole)
    return _ID_INSIDE.sub(_id, text)


def _parameter(name: str, parameters: Mapping[str, Any], used: set[str]) -> Any:
    if name not in parameters:
        raise ScenarioError(f"there is no parameter {name!r}")
    used.add(name)
    return parameters[name]


def _id(match: re.Match[str]) -> str:
    return generation_id(int(match[1]), int(match[2]), int(match[3]))
