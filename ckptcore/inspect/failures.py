"""Why saves do not become checkpoints, grouped by what somebody would do about it. Pure.

An abort gives its reason in words only, and other implementations have other words: what is not recognized is `not whole`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Failure = Literal["missing receipt", "failed rank", "store full", "superseded", "not whole"]
"""`missing receipt`: a rank was dead or late. `failed rank`: one said that its part will not come. `store full`: there was
no room. `superseded`: a newer job cleared it away. `not whole`: what was delivered does not fit together, or was gone."""

_SIGNS: Sequence[tuple[str, Failure]] = (
    ("StoreFull", "store full"),
    ("no room", "store full"),
    ("no receipt", "missing receipt"),
    ("could not write", "failed rank"),
    ("superseded", "superseded"),
)


def failure(reason: str, missing: Sequence[int] = ()) -> Failure:
    """The kind of an abort, from the reason and the missing ranks in its record."""
    if missing:
        return "missing receipt"
    for sign, kind in _SIGNS:
        if sign in reason:
            return kind
    return "not whole"
