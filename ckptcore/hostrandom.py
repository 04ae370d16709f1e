"""The random generators that every Python process has: `random`, and numpy's global one.

A state is made of plain values. It is judged before anything is set.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ckptcore.errors import StructureMismatch


def capture() -> dict[str, Any]:
    """`{"python": …, "numpy": …}`: ints, floats, lists, text and bytes only."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 -- the global generator is what is saved
    return {
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": np.asarray(keys, "<u4").tobytes(),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        },
    }


def prepare(state: Any, *, name: str) -> Callable[[], None]:
    """What sets both generators to a state from `capture`. Changes nothing yet.

    Raises `StructureMismatch` for anything else; `name` is the component's function, for the message.
    """
    try:
        python, numpy = state["python"], state["numpy"]
        keys = np.frombuffer(numpy["keys"], "<u4").astype(np.uint32)
        legacy = (numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached_gauss"])
        internal = (python["version"], tuple(python["internal"]), python["gauss"])
        if not isinstance(python["gauss"], float | None):  # Python would find out when the next one is drawn
            raise TypeError(f"gauss is {python['gauss']!r}")
        random.Random().setstate(internal)  # noqa: S311
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise foreign(name, f"{type(error).__name__}: {error}") from error
    try:
        np.random.RandomState().set_state(legacy)
    except (TypeError, ValueError, OverflowError) as error:
        raise foreign(name, f"numpy: {error}") from error

    def apply() -> None:
        np.random.set_state(legacy)  # noqa: NPY002
        random.setstate(internal)

    return apply


def foreign(name: str, reason: str) -> StructureMismatch:
    """The refusal of what is no state of the function `name`."""
    return StructureMismatch(f"this is no state of `{name}`", [reason])
