"""What one leaf of a torch program's state is, in the format's terms, and how tensors and host arrays become each other.

| leaf | stored as |
| --- | --- |
| `torch.Tensor`, `Parameter`, `Buffer`, `DTensor` | an array |
| numpy array or scalar | an array that each rank holds whole |
| bool, int, float, str, bytes, None | a value; bytes beyond 64 KiB a uint8 array |
| an empty container | a value: `{}`, `[]` or `()` |

Anything else is an `UnsupportedLeaf` that names its path and type, and says what to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.parameter import Parameter, is_lazy

from ckptcore import dtypes
from ckptcore.components import missing_method
from ckptcore.errors import UnsupportedLeaf
from ckptcore.plain import is_long

_PLAIN = (torch.Tensor, Parameter, DTensor)

_TORCH = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
# The types that numpy lacks pass as unsigned integers of their size.
_BITS = {"bfloat16": (torch.uint16, np.dtype(np.uint16))}
_BITS |= {name: (torch.uint8, np.dtype(np.uint8)) for name in _TORCH if name.startswith("float8_")}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is stored as an array rather than as a value."""
    return isinstance(leaf, torch.Tensor | np.ndarray | np.generic) or is_long(leaf)


def check(tensor: torch.Tensor | np.ndarray | np.generic, where: str) -> None:
    """Raise `UnsupportedLeaf`, which names `where`, unless it is a dense tensor, a `DTensor` or a numpy array with data.

    Of a subclass nobody but its author knows which inner tensors make it up, or how to fill it in place.
    """
    if not isinstance(tensor, torch.Tensor):
        return _check_host(tensor, where)
    problem = _problem(tensor) or _dtype_problem(tensor.dtype)
    if problem is None and isinstance(tensor, DTensor):
        with torch.no_grad():
            local = tensor.to_local()
        inner = _problem(local)
        problem = inner and f"a DTensor whose local part is {inner}"
    if problem is not None:
        raise UnsupportedLeaf(f"{where}: {problem}")
    return None


def dtype_name(dtype: torch.dtype, where: str) -> str:
    """The logical name of `dtype`. Raises `UnsupportedLeaf`, naming the leaf `where`, if it has none."""
    problem = _dtype_problem(dtype)
    if problem is not None:
        raise UnsupportedLeaf(f"{where}: {problem}")
    return _NAMES[dtype]


def torch_dtype(name: str, where: str) -> torch.dtype:
    """The torch dtype with the logical name `name`. Raises `UnsupportedLeaf`, naming the leaf `where`, if torch has none."""
    dtype = _TORCH.get(name)
    if dtype is None:
        raise UnsupportedLeaf(
            f"{where}: torch has no tensors of dtype {name}; torch's are {', '.join(sorted(_TORCH))}. "
            "Read it as a numpy array (open_run), or leave it out with components="
        )
    return dtype


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A plain CPU tensor as an array of its logical dtype: a view of the same memory, whatever its strides.

    Only a tensor that is a lazy conjugate or negative is copied: its memory holds something else than its values.
    """
    name = _NAMES[tensor.dtype]
    plain = tensor.detach().resolve_conj().resolve_neg()
    if name not in _BITS:
        return plain.numpy()
    return plain.view(_BITS[name][0]).numpy().view(dtypes.numpy_dtype(name))


def from_numpy(array: np.ndarray, where: str = "array") -> torch.Tensor:
    """A tensor over the memory of `array`, which has a logical dtype.

    It is copied where torch could not use it as it is: read-only, strided, misaligned or big-endian. Raises
    `UnsupportedLeaf`, naming the leaf `where`, for a dtype that torch lacks.
    """
    name = dtypes.name_of(array.dtype, where=where)
    dtype = torch_dtype(name, where)
    usable = array.flags.carray and array.dtype.isnative
    plain = array if usable else array.astype(dtypes.numpy_dtype(name), order="C", copy=True)
    if name not in _BITS:
        return torch.from_numpy(plain)
    return torch.from_numpy(plain.view(_BITS[name][1])).view(dtype)


def unsupported(leaf: Any, where: str) -> UnsupportedLeaf:
    """The error for a leaf without a place in the format."""
    return UnsupportedLeaf(
        f"{where}: {_type_name(leaf)} has no place in a checkpoint. Supported are tensors, modules, optimizers, numpy arrays and "
        f"scalars, bool, int, float, str, bytes, None, and objects with state_dict/load_state_dict or get_state/set_state."
        f"{_hint(leaf)}"
    )


def _check_host(array: np.ndarray | np.generic, where: str) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedLeaf(f"{where}: a masked array has no place in a checkpoint; save its data and its mask")
    dtypes.name_of(array.dtype, where=where)


def _hint(leaf: Any) -> str:
    absent = missing_method(leaf)
    if absent is not None:
        return f" It lacks {absent}()."
    if isinstance(leaf, torch.dtype | torch.device):
        return " Save its text: str(it)."
    if _is_iterated(leaf):
        return " Give it, or a class around it, state_dict() and load_state_dict(state), which say and set where it stands."
    if callable(leaf):
        return " Functions are code, not state: keep them out of what is saved."
    return ""


def _is_iterated(leaf: Any) -> bool:
    """Whether `leaf` is a loader or an iterator, rather than one of Python's own collections."""
    kind = type(leaf)
    return hasattr(kind, "__next__") or (hasattr(kind, "__iter__") and kind.__module__ not in ("builtins", "collections"))


def _problem(tensor: torch.Tensor) -> str | None:
    """Why the elements of a tensor cannot be read or filled one by one."""
    if is_lazy(tensor):
        return "a lazy parameter or buffer without a shape yet: run one forward pass first"
    if tensor.is_nested:
        return "a nested tensor: save its values and offsets (.values(), .offsets()), or what .unbind() gives"
    if type(tensor) not in _PLAIN:
        return f"the tensor subclass {_type_name(tensor)}: save its plain inner tensors, or what .dequantize() or the like gives"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype}): save its .int_repr(), scales and zero points"
    if tensor.is_mkldnn:
        return "a tensor in MKL-DNN layout: save .to_dense()"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({tensor.layout}): save its indices and its values, or .to_dense()"
    if tensor.is_meta:
        return (
            "a tensor on the meta device: it holds nothing that could be saved or restored into; "
            "materialize it with module.to_empty(device=…) first"
        )
    return _freed(tensor)


def _freed(tensor: torch.Tensor) -> str | None:
    # numpy would make uninitialised memory of its own for it.
    if type(tensor) is not DTensor and tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        return "the tensor's memory was freed (FSDP does that to gathered parameters); take the tensor from the module"
    return None


def _dtype_problem(dtype: torch.dtype) -> str | None:
    if dtype in _NAMES:
        return None
    name = str(dtype).removeprefix("torch.")
    if dtype == torch.complex32:
        advice = "save .to(torch.complex64), which holds the same values"
    elif dtype == torch.float4_e2m1fn_x2:
        advice = "two elements a byte; save .view(torch.uint8)"
    elif name.startswith("q"):
        advice = "save its .int_repr(), scales and zero points"
    else:
        advice = "it only names bits; save .view(torch.uint8), or convert it to a whole type"
    return f"a tensor of dtype {name} cannot be stored: {advice}"


def _type_name(leaf: Any) -> str:
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
