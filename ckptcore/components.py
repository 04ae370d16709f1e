"""What a component is: its kind by name, how its ranks relate, and objects that carry state.

Names are free; the known kinds decide which guarantee a save can give (spec: guarantees).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from ckptcore.errors import CallError, CheckpointError

CUSTOM = "custom"

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "params": "parameters",
        "model": "parameters",
        "optimizer": "optimizer",
        "opt_state": "optimizer",
        "schedule": "schedule",
        "loss_scale": "loss_scale",
        "rng": "rng",
        "data": "data",
        "extra": "extra",
        "grad_accum": "gradients",
        "curriculum": "curriculum",
    }
)
"""Component name → kind. Any other name is of kind `custom`."""

_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


@dataclass(frozen=True)
class PerRank:
    """A component that every rank stores for itself: its structure may differ, nothing is deduplicated."""

    value: Any


@dataclass(frozen=True)
class RankZero:
    """A component whose host arrays and values may differ between ranks: rank 0's copy counts, unchecked.

    Arrays that span the ranks are stored as ever.
    """

    value: Any


def kind_of(name: str) -> str:
    """The kind of a component, by its name."""
    return KINDS.get(name, CUSTOM)


def unwrap(value: Any) -> tuple[Any, Literal["global", "rank"], bool]:
    """`(what is inside, scope, rank_zero)` of a component as the caller passed it.

    Raises `CallError` for a wrapper inside a wrapper.
    """
    if not isinstance(value, PerRank | RankZero):
        return value, "global", False
    if isinstance(value.value, PerRank | RankZero):
        outer, inner = type(value).__name__, type(value.value).__name__
        raise CallError(
            f"a component cannot be {outer} of {inner}: it is stored per rank, or rank 0's copy counts; use one of them"
        )
    return value.value, "rank" if isinstance(value, PerRank) else "global", isinstance(value, RankZero)


def is_stateful(obj: Any) -> bool:
    """Whether `obj` has a `get_state`/`set_state` or `state_dict`/`load_state_dict` pair of methods.

    A class has not: its methods belong to its instances. Neither has an object that answers
    to any attribute name.
    """
    return _pair(obj) is not None


def get_state(obj: Any) -> Any:
    """The state of a stateful object. Raises `CallError` for any other."""
    return getattr(obj, _methods(obj)[0])()


def set_state(obj: Any, state: Any, *, where: str) -> None:
    """Put `state` back into a stateful object, in place.

    Raises `CallError`, which names `where`, for any other object, and with the cause chained when the object refuses.
    """
    method = _methods(obj)[1]
    try:
        getattr(obj, method)(state)
    except Exception as error:
        reason = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        raise CallError(f"{where}: {type(obj).__name__}.{method} does not take the restored state: {reason}") from error


def missing_method(obj: Any) -> str | None:
    """The method without which `obj` would be stateful: it has the other half of a pair. None if it has no half."""
    for pair in _PAIRS:
        absent = [method for method in pair if not callable(getattr(type(obj), method, None))]
        if len(absent) == 1 and not isinstance(obj, type):
            return absent[0]
    return None


def _pair(obj: Any) -> tuple[str, str] | None:
    if isinstance(obj, type):
        return None
    return next((pair for pair in _PAIRS if all(callable(getattr(type(obj), method, None)) for method in pair)), None)


def _methods(obj: Any) -> tuple[str, str]:
    pair = _pair(obj)
    if pair is None:
        raise CallError(f"{type(obj).__name__} has neither `get_state`/`set_state` nor `state_dict`/`load_state_dict`")
    return pair
