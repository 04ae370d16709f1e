"""Arguments that callers mix up, refused with what to pass instead.

Messages name types and never show values: a value may be as large as a training state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ckptcore.errors import CallError
from ckptcore.names import MAX_STEP


def check_step(step: Any) -> int:
    """Return `step` if it is a number of completed updates. Raises `CallError` otherwise."""
    if type(step) is not int:
        raise CallError(f"step is {_kind(step)}, expected an int, the number of completed updates: save(step, components)")
    if not 0 <= step <= MAX_STEP:
        raise CallError(f"step is {step}, expected 0 to {MAX_STEP}: the number of completed updates")
    return step


def check_seconds(seconds: Any) -> float:
    """Return `seconds` if it is a span of time. Raises `CallError` otherwise."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise CallError(
            f"seconds is {seconds if isinstance(seconds, float | int) else _kind(seconds)}, expected a number, 0 or more"
        )
    return float(seconds)


def check_switch(value: Any, *, what: str) -> bool:
    """Return `value` if it is True or False: a text such as "no" would count as True. Raises `CallError` otherwise."""
    if not isinstance(value, bool):
        raise CallError(f"{what} is {_kind(value)}, expected True or False")
    return value


def check_components(components: Any, *, what: str = "components") -> Mapping[str, Any]:
    """Return `components` if it is a mapping. Raises `CallError` otherwise."""
    if not isinstance(components, Mapping):
        raise CallError(f"{what} is {_kind(components)}, expected a mapping from names to state: {{'params': …, 'optimizer': …}}")
    return components


def check_like(like: Any) -> Mapping[str, Any]:
    """Return `like` if it is a mapping. Raises `CallError` otherwise."""
    if callable(like) and not isinstance(like, Mapping):
        raise CallError(f"like is {_kind(like)}; call it, or trace its shapes (in JAX: like=jax.eval_shape(init))")
    return check_components(like, what="like")


def check_init(init: Any) -> Callable[[], Any]:
    """Return `init` if it can be called. Raises `CallError` otherwise."""
    if not callable(init):
        raise CallError(f"init is {_kind(init)}, expected a function that makes the first state: pass init, not init()")
    return init


def _kind(value: Any) -> str:
    name = type(value).__name__
    return name if name == "NoneType" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
