"""Where the suite's data files lie: inside of an installed package, or in the source tree around it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_SOURCE = {"schema": _PACKAGE.parents[1] / "spec" / "v1" / "schema"}


def folder(name: str) -> Path:
    """The folder `name` of data: `scenarios`, `golden`, `schema` and the like.

    Raises `FileNotFoundError` where there is none.
    """
    for path in (_PACKAGE / name, _SOURCE.get(name, _PACKAGE.parent / name)):
        if path.is_dir():
            return path
    raise FileNotFoundError(f"the conformance suite has no folder {name!r}: is it installed completely?")
