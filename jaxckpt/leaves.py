"""What one leaf of a JAX program's state is, in the format's terms.

| leaf | stored as |
| --- | --- |
| `jax.Array` | an array; a typed random key as its key data, with the implementation's name |
| numpy array or scalar | an array that each rank holds whole |
| bool, int, float, str, bytes, None | a value; bytes beyond 64 KiB a uint8 array |
| an empty node | a value: `{}`, `[]` or `()` |

Anything else is an `UnsupportedLeaf` that names its path and type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ckptcore import dtypes
from ckptcore.components import missing_method
from ckptcore.errors import UnsupportedLeaf
from ckptcore.plain import is_long


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """The array that a leaf is stored as. `data` is the key data of a typed random key."""

    data: jax.Array | np.ndarray
    dtype: str
    prng_impl: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape, in elements."""
        return tuple(self.data.shape)

    @property
    def weak_type(self) -> bool:
        """Whether JAX's promotion treats it like a Python scalar."""
        return bool(getattr(self.data, "weak_type", False))


def is_array(leaf: Any) -> bool:
    """Whether a leaf is stored as an array rather than as a value."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) or is_long(leaf)


def array_source(leaf: Any, where: str) -> ArraySource:
    """The array of a leaf for which `is_array` holds; `where` names it in errors.

    Raises `UnsupportedLeaf` for tracers, donated arrays and dtypes without a place in the format.
    """
    if isinstance(leaf, jax.Array):
        return _device_source(leaf, where)
    if isinstance(leaf, np.ma.MaskedArray):
        raise UnsupportedLeaf(f"{where}: a masked array has no place in a checkpoint; save its data and its mask")
    data = np.asarray(leaf)
    return ArraySource(data=data, dtype=dtypes.name_of(data.dtype, where=where))


def is_key(leaf: Any) -> bool:
    """Whether an array, or an abstract one, has typed random keys as elements."""
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def unsupported(leaf: Any, where: str) -> UnsupportedLeaf:
    """The error for a leaf without a place in the format."""
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    hint = ""
    absent = missing_method(leaf)
    if absent is not None:
        hint = f" It lacks {absent}()."
    elif isinstance(leaf, jax.ShapeDtypeStruct):
        hint = " Abstract arrays belong into `like`; a save needs the arrays themselves."
    elif _is_iterated(leaf):
        hint = " Give it, or a class around it, get_state() and set_state(state), which say and set where it stands."
    elif callable(leaf):
        hint = " Functions are code, not state: keep them out of the tree (for a dataclass: as static fields)."
    return UnsupportedLeaf(
        f"{where}: {kind} has no place in a checkpoint. Supported are jax.Array, numpy arrays and scalars, "
        f"bool, int, float, str, bytes, None, and objects with get_state/set_state or state_dict/load_state_dict.{hint}"
    )


def _is_iterated(leaf: Any) -> bool:
    """Whether `leaf` is a loader or an iterator, rather than one of Python's own collections."""
    kind = type(leaf)
    return hasattr(kind, "__next__") or (hasattr(kind, "__iter__") and kind.__module__ not in ("builtins", "collections"))


def _device_source(leaf: jax.Array, where: str) -> ArraySource:
    if isinstance(leaf, Tracer):
        raise UnsupportedLeaf(f"{where}: a tracer. Save outside of jit, grad and the like")
    if leaf.is_deleted():
        raise UnsupportedLeaf(f"{where}: the array was deleted or donated. Save the state that the training step returned")
    if is_key(leaf):
        data = jax.random.key_data(leaf)
        return ArraySource(data=data, dtype=dtypes.name_of(data.dtype, where=where), prng_impl=str(jax.random.key_impl(leaf)))
    return ArraySource(data=leaf, dtype=dtypes.name_of(np.dtype(leaf.dtype), where=where))


def key_data_facts(leaf: jax.Array | jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, str]:
    """Shape and dtype of the key data of a typed random key, concrete or abstract, and the implementation's name."""
    impls: list[str] = []

    def look(key: jax.Array) -> jax.Array:
        impls.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    data = jax.eval_shape(look, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return data, impls[0]
