"""Leaves that are plain Python, the same in every framework, and what the backends say of the libraries around them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from typing import Any, Literal

from ckptcore.values import MAX_BYTES

Scalar = Literal["bool", "int", "float"]
_SCALARS: dict[type, Scalar] = {bool: "bool", int: "int", float: "float"}
_VALUES = (bool, int, float, str, bytes)


def is_long(leaf: Any) -> bool:
    """Whether a leaf is a bytes object that is too long for a value."""
    return isinstance(leaf, bytes) and len(leaf) > MAX_BYTES


def is_value(leaf: Any) -> bool:
    """Whether a leaf is a Python value of the format. Empty nodes are not asked about."""
    return type(leaf) in _VALUES


def scalar_kind(leaf: Any) -> Scalar | None:
    """The kind of a Python number, None for any other value."""
    return _SCALARS.get(type(leaf))


def empty_node(node: Any) -> Any:
    """What an empty node is stored as: `None`, `()`, `[]` or `{}`. Call it for empty nodes only."""
    if node is None:
        return None
    if isinstance(node, list):
        return []
    return () if isinstance(node, tuple) else {}


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """The versions of Python and of those `libraries` (distributions) that are installed."""
    found = {name: version for name in libraries if (version := _version(name)) is not None}
    return {"python": sys.version.split()[0], **found}


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
