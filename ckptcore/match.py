"""What a restore target wants against what a checkpoint has: pure (spec: reading, structure).

Nothing is cast, missing or extra without a word: either everything fits, with the
renaming, casts and omissions that the caller asked for, or an error lists every difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import ml_dtypes
import numpy as np

from ckptcore import dtypes
from ckptcore.backend import Wanted
from ckptcore.errors import CallError, StructureMismatch
from ckptcore.names import array_name, show_path
from ckptcore.nested import BYTES
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf

Rename = Mapping[str, str] | Callable[[str], str]

Elsewhere = tuple[str, bool]
"""The name of a leaf that another rank wants, and whether it takes what is below it too."""

_SCALARS = {"bool": ("bool",), "int": ("int", "uint"), "float": ("float", "bfloat"), "complex": ("complex",)}


@runtime_checkable
class Conversion(Protocol):
    """A checkpoint of one framework, seen as another's (`ckptcore.convert`)."""

    @property
    def source(self) -> str:
        """The framework whose checkpoints it converts; others are read as they are."""
        ...

    def components(self, name: str) -> Sequence[str]:
        """The source's components that the target's component `name` draws from."""
        ...

    def keeps(self, leaf: Wanted) -> bool:
        """Whether a leaf of the target has no counterpart by the caller's word, and stays as it is."""
        ...

    def doubt(self, wanted: Sequence[Wanted]) -> str:
        """For an error: a question if the target looks like one of the framework that is converted from, else nothing."""
        ...

    def view(
        self,
        source: Readable,
        wanted: Sequence[Wanted],
        *,
        missing: Literal["error", "keep"],
        extra: Literal["error", "ignore"],
        elsewhere: Collection[Elsewhere],
    ) -> Readable:
        """`source` under the names and shapes of `wanted`. Raises `StructureMismatch` listing whatever has no counterpart."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a restore may do beyond an exact match; every permission is the caller's.

    `rename`: from the target's names to the checkpoint's; a mapping renames whole dotted prefixes.
    `cast`: floating-point arrays take this dtype, but not those of objects that take whatever was stored.
    `missing`: a leaf that the checkpoint lacks is an error, or keeps what the target holds.
    `extra`: a leaf that the target lacks is an error, or is left out.
    `convert`: how a checkpoint of another framework is seen.
    """

    rename: Rename | None = None
    cast: str | None = None
    missing: Literal["error", "keep"] = "error"
    extra: Literal["error", "ignore"] = "error"
    convert: Conversion | None = None

    def __post_init__(self) -> None:
        if self.missing not in ("error", "keep"):
            raise CallError(f"missing={self.missing!r}: expected 'error' or 'keep'")
        if self.extra not in ("error", "ignore"):
            raise CallError(f"extra={self.extra!r}: expected 'error' or 'ignore'")
        if self.convert is not None and not isinstance(self.convert, Conversion):
            made = "flax_to_torch(…) or torch_to_flax(…) of ckptcore.convert"
            raise CallError(f"convert={self.convert!r}: expected a conversion, which {made} makes")
        if self.convert is not None and self.rename is not None:
            raise CallError("rename= does not go with convert=: a conversion has names= of its own")

    def stored_name(self, name: str) -> str:
        """The checkpoint's name of the target's leaf `name`."""
        if self.rename is None:
            return name
        if not isinstance(self.rename, Mapping):
            return self.rename(name)
        for wanted in sorted(self.rename, key=len, reverse=True):
            if name == wanted or name.startswith(wanted + "."):
                return self.rename[wanted] + name[len(wanted) :]
        return name

    def alterations(self) -> list[str]:
        """In which ways a restore by these rules may give back other than what was saved."""
        allowed = {
            f"floating-point arrays are cast to {self.cast}": self.cast is not None,
            "leaves that the checkpoint lacks are kept from the target (missing='keep')": self.missing == "keep",
            "leaves that the target lacks are left out (extra='ignore')": self.extra == "ignore",
        }
        return [way for way, holds in allowed.items() if holds]

    def component(self, name: str) -> str:
        """The component that holds the target's leaf `name`, in the checkpoint or in what it is converted to."""
        return self.stored_name(name).split(".")[0]

    def sources(self, name: str, framework: str) -> Sequence[str]:
        """The components of a checkpoint of `framework` that the target's leaf `name` is drawn from."""
        component = self.component(name)
        return (component,) if self.convert is None or self.convert.source != framework else self.convert.components(component)

    def view(self, source: Readable, wanted: Sequence[Wanted], elsewhere: Collection[Elsewhere]) -> Readable:
        """`source` as `wanted` needs it; `elsewhere` is what other ranks take."""
        if self.convert is None or self.convert.source != source.framework:
            self._check_direction(source, wanted)
            return source
        return self.convert.view(source, wanted, missing=self.missing, extra=self.extra, elsewhere=elsewhere)

    def keeps(self, leaf: Wanted, framework: str) -> bool:
        """Whether a leaf of the target stays as it is when a checkpoint of `framework` is converted."""
        return self.convert is not None and self.convert.source == framework and self.convert.keeps(leaf)

    def _check_direction(self, source: Readable, wanted: Sequence[Wanted]) -> None:
        """Raise `CallError` if what is wanted is not there and `convert` converts the other way."""
        absent = {self.component(leaf.name) for leaf in wanted} - set(source.names)
        doubt = self.convert.doubt(wanted) if self.convert is not None and absent and self.missing == "error" else ""
        if doubt:
            raise CallError(f"{source.title}, of {source.framework}, has no component {min(absent)!r}{doubt}")

    def dtype(self, stored: str) -> str:
        """The dtype a stored array is restored to."""
        return self.cast if self.cast is not None and is_floating(stored) else stored


@dataclass
class Match:
    """`arrays` and `values` pair a wanted leaf with the stored one; `trees` with all stored leaves at and below its path."""

    arrays: list[tuple[Wanted, StoredLeaf]] = field(default_factory=list)
    values: list[tuple[Wanted, StoredLeaf]] = field(default_factory=list)
    trees: list[tuple[Wanted, list[StoredLeaf]]] = field(default_factory=list)


def cast_name(cast: Any) -> str | None:
    """The name of a dtype given as a name, a dtype (numpy's or torch's) or a scalar type.

    Raises `CallError` unless it is floating.
    """
    if cast is None:
        return None
    text = str(cast)
    try:
        # numpy knows no dtypes of torch: their text is `torch.` and the name.
        by_text = isinstance(cast, str) or text.startswith("torch.")
        name = text.removeprefix("torch.") if by_text else np.dtype(cast).name
    except TypeError as error:
        raise CallError(f"cast={cast!r}: expected the name of a floating-point dtype, or the dtype") from error
    if not is_floating(name) or name not in dtypes.LOGICAL:
        raise CallError(f"cast={name!r}: only floating-point arrays are cast, to a floating-point dtype")
    return name


def is_floating(dtype: str) -> bool:
    """Whether a logical dtype is a real floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def match(
    wanted: Sequence[Wanted],
    stored: Mapping[str, StoredLeaf],
    source: Readable,
    rules: Rules,
    *,
    elsewhere: Collection[Elsewhere] = (),
) -> Match:
    """Pair every wanted leaf with a stored one of `source`. `elsewhere` is what other ranks take.

    Raises `StructureMismatch` with all differences at once.
    """
    result = Match()
    differences: list[str] = []
    used = _taken_elsewhere(elsewhere, stored, rules)
    ordered = sorted(stored)
    for leaf in wanted:
        name = rules.stored_name(leaf.name)
        if leaf.kind == "any":
            below = [stored[key] for key in _with_prefix(ordered, name) if _is_below(stored[key], name)]
            used.update(item.name for item in below)
            if below:
                result.trees.append((leaf, below))
            elif rules.missing == "error" and not leaf.optional:
                differences.append(f"{_show(leaf)}: not in the checkpoint")
            continue
        names = [name, *(rules.stored_name(other) for other in (*leaf.tied, *_other_length(leaf)))]
        found = next((stored[known] for known in names if known in stored), None)
        if found is None:
            if rules.missing == "error" and not leaf.optional:
                renamed = "" if name == leaf.name else f" (looked for as {name!r})"
                differences.append(f"{_show(leaf)}: not in the checkpoint{renamed}")
            continue
        used.update(names)
        problem = _problem(leaf, found, source, rules) or _untied(found, names, stored, source)
        if problem is not None:
            differences.append(f"{_show(leaf)}: {problem}")
        elif isinstance(found.record, ArrayLeaf):
            result.arrays.append((leaf, found))
        else:
            result.values.append((leaf, found))
    if rules.extra == "error":
        unused = [item for key, item in stored.items() if key not in used]
        differences.extend(
            f"{show_path(item.component, item.record.path)}: in the checkpoint, not in the target" for item in unused
        )
    if differences:
        doubt = "" if rules.convert is None else rules.convert.doubt(wanted)
        raise StructureMismatch(
            f"{source.title} does not fit the target{doubt}; {len(differences)} differences"
            " (restore() allows for some: components=, rename={'target.name': 'checkpoint.name'}, cast=,"
            " missing='keep' with real arrays in `like`, extra='ignore'):",
            differences,
        )
    return result


def _other_length(leaf: Wanted) -> list[str]:
    """Where the bytes of a leaf lie if they are longer, or shorter, than those that the target holds (spec: V-5)."""
    if leaf.path[-1:] == (BYTES,):
        return [array_name(leaf.component, leaf.path[:-1])]
    return [array_name(leaf.component, (*leaf.path, BYTES))] if type(leaf.value) is bytes else []


def _taken_elsewhere(elsewhere: Collection[Elsewhere], stored: Mapping[str, StoredLeaf], rules: Rules) -> set[str]:
    """The stored names that other ranks' leaves take."""
    ordered = sorted(stored)
    used: set[str] = set()
    for name, with_below in elsewhere:
        known = rules.stored_name(name)
        used.update(_with_prefix(ordered, known) if with_below else {known} & stored.keys())
    return used


def _with_prefix(ordered: Sequence[str], name: str) -> Iterator[str]:
    """The names among `ordered`, which is sorted, that are `name` or go on after it."""
    for position in range(bisect_left(ordered, name), len(ordered)):
        if not ordered[position].startswith(name):
            return
        if ordered[position] == name or ordered[position].startswith(name + "."):
            yield ordered[position]


def _is_below(leaf: StoredLeaf, name: str) -> bool:
    """Whether `leaf` lies at or below the node called `name`; a key may have dots of its own."""
    if leaf.name != name and not leaf.name.startswith(name + "."):
        return False
    path = leaf.record.path
    return any(array_name(leaf.component, path[:depth]) == name for depth in range(len(path) + 1))


def _untied(found: StoredLeaf, names: Sequence[str], stored: Mapping[str, StoredLeaf], source: Readable) -> str | None:
    """Why an array that the target has under several `names` cannot be restored from what is stored under them.

    A view's digests tell how the axes lie too: of arrays that lie otherwise nothing is known.
    """
    for name in names:
        other = stored.get(name)
        if other is None or other.stored_target == found.stored_target:
            continue
        own, digest = source.digest(found), source.digest(other)
        if own is None or digest is None or own.partition(" ")[2] != digest.partition(" ")[2]:
            return (
                f"the target ties it to {name!r}, where the checkpoint holds an array of its own, and no digests tell"
                " whether they are equal; restore it without the tie"
            )
        if own != digest:
            return f"the target ties it to {name!r}, where the checkpoint holds other content"
    return None


def _problem(leaf: Wanted, found: StoredLeaf, source: Readable, rules: Rules) -> str | None:
    if isinstance(found.record, ArrayLeaf):
        return _array_problem(leaf, found.record, rules)
    value = source.value(found)
    if leaf.path[-1:] == (BYTES,) and type(value) is bytes:
        return None
    if leaf.kind == "empty":
        same = type(value) is type(leaf.value) and value == leaf.value
        return None if same else f"the target is {leaf.value!r} there, the checkpoint {value!r}"
    if leaf.kind == "value":
        # Exact types: True is not 1, and text is not bytes.
        fits = type(value) is type(leaf.value)
        return None if fits else f"the target holds {_scalar_or_type(leaf)}, the checkpoint {value!r}"
    if leaf.shape == () and leaf.dtype is not None and type(value).__name__ == _array_scalar(leaf.dtype):
        return _number_problem(value, leaf.dtype, rules)
    return f"the target is an array of {leaf.dtype}{list(leaf.shape or ())}, the checkpoint holds the value {value!r}"


def _number_problem(value: Any, dtype: str, rules: Rules) -> str | None:
    """Why an array of `dtype` cannot take the Python number `value`: it must hold an int as it is.

    A float is what a computation in float32 would take it for. (A narrower type has to hold it as it is, unless it is
    cast to.) Never does a finite number become infinite, or one that is not zero become zero.
    """
    kind = dtypes.numpy_dtype(dtype)
    if isinstance(value, int):
        fits = isinstance(value, bool) or int(ml_dtypes.iinfo(kind).min) <= value <= int(ml_dtypes.iinfo(kind).max)
    elif rules.cast == dtype:
        fits = True
    else:
        with np.errstate(over="ignore"):
            taken = float(np.array(value).astype(kind))
        fits = taken == value or (math.isnan(taken) and math.isnan(value))
        fits = fits and math.copysign(1, taken) == math.copysign(1, value)
        if not fits and kind.itemsize >= np.dtype(np.float32).itemsize:
            fits = math.isfinite(taken) and taken != 0
    hint = " (restore(cast=…) rounds it)" if isinstance(value, float) else ""
    return None if fits else f"the target is an array of {dtype}[], which does not hold the checkpoint's {value!r}{hint}"


def _array_problem(leaf: Wanted, record: ArrayLeaf, rules: Rules) -> str | None:
    dtype = rules.dtype(record.dtype)
    stored = f"{record.dtype}{list(record.shape)}"
    if leaf.kind == "empty":
        return f"the target is {leaf.value!r} there, the checkpoint an array of {stored}"
    if leaf.kind == "value" and type(leaf.value) is bytes and record.path[-1:] == (BYTES,):
        return None
    if leaf.kind == "value":
        fits = (
            record.shape == ()
            and leaf.scalar is not None
            and record.prng_impl is None
            and _array_scalar(record.dtype) == leaf.scalar
        )
        return None if fits else f"the target holds {_scalar_or_type(leaf)}, the checkpoint an array of {stored}"
    problems = []
    if record.prng_impl != leaf.prng_impl:
        problems.append(f"random key implementation {record.prng_impl!r} in the checkpoint, {leaf.prng_impl!r} in the target")
    if leaf.shape is not None and record.shape != leaf.shape:
        problems.append(f"shape {list(record.shape)} in the checkpoint, {list(leaf.shape)} in the target")
    if leaf.dtype is not None and dtype != leaf.dtype:
        cast = f", cast to {dtype}" if dtype != record.dtype else ""
        hint = " (restore(cast=…) casts floating-point arrays)" if is_floating(record.dtype) and not cast else ""
        problems.append(f"dtype {record.dtype} in the checkpoint{cast}, {leaf.dtype} in the target{hint}")
    return "; ".join(problems) or None


def _array_scalar(dtype: str | None) -> str | None:
    """The kind of Python number that a 0-d array of `dtype` holds."""
    for scalar, starts in _SCALARS.items():
        if dtype is not None and dtype.startswith(starts):
            return scalar
    return None


def _scalar_or_type(leaf: Wanted) -> str:
    return f"a Python {leaf.scalar or type(leaf.value).__name__}"


def _show(leaf: Wanted) -> str:
    return show_path(leaf.component, leaf.path)
