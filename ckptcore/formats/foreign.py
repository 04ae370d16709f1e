"""Checkpoints in other formats, as something to start from or to read (spec: records, "origin"; forks).

A `Source` is what `Checkpointer(start_from=…)` takes beside the URL of a run: leaves that can be read box by
box, and a description that a new run records, so that a restart before its first commit begins
from the same source or not at all: the same by its tensors' names, types and shapes, and the first bytes of each.

`Foreign` is what all formats have in common. A format says which tensors there are and reads
boxes of them; nothing is opened before it is needed, since a run that has a commit of its own ignores where it began.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, ClassVar, Protocol

import numpy as np

from ckptcore import canonical, digests, dtypes, readable, records, values
from ckptcore.errors import CallError, NotFound, StructureMismatch
from ckptcore.formats.renames import Names, Renames, shown
from ckptcore.geometry import Box
from ckptcore.match import cast_name
from ckptcore.names import Path, array_name, check_component
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf

HEAD_BYTES = 4096
"""Of each tensor, the bytes that are part of a source's digest: they tell two models of one architecture apart."""
PIECE_BYTES = 16 << 20
"""The most bytes of a tensor that are held at a time where it is gone through from end to end."""
MAX_PART_BYTES = 255
"""The most bytes of a name in a folder."""
_MAX_PATH_BYTES = 4095


class Source(Readable, Protocol):
    """A checkpoint in another format, to begin a run from."""

    @property
    def cast(self) -> str | None:
        """The floating-point dtype that a run which begins from it takes; None: the one stored."""
        ...

    def describe(self) -> records.Origin:
        """What a run that begins from it records. Equal digests mean the same source."""
        ...


Start = str | os.PathLike[str] | Source
"""What a new run can begin from: the URL of a run, or a checkpoint in another format."""


def as_source(start: Source) -> Source:
    """`start`, which a caller takes for a `Source`. Raises `CallError` when it is none."""
    if not callable(getattr(start, "describe", None)):
        kind = type(start).__name__
        raise CallError(
            f"start_from is {kind}: expected the URL of a run, or a source such as ckptcore.formats.safetensors.Safetensors"
        )
    return start


@dataclass(frozen=True)
class Tensor:
    """A tensor as its format has it. `dtype` is logical; `prng_impl` is that of typed random keys, whose data it is."""

    dtype: str
    shape: tuple[int, ...]
    prng_impl: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return Box.whole(self.shape).size * dtypes.itemsize(self.dtype)


class Foreign(ABC):
    """Tensors in files of another format, as one component; under torch's names, unless the format says otherwise.

    `path`: where the checkpoint lies. `component`: what its tensors are to be called together. `names`: rules from the
    names in the files to the component's (`ckptcore.formats.renames`). `cast`: the floating-point dtype that a run which starts
    from here takes; None takes what is stored.
    """

    format: ClassVar[str]
    framework: str = "torch"

    def __init__(self, path: str | os.PathLike[str], *, component: str, names: Names | None = None, cast: Any = None) -> None:
        self.path = absolute(path)
        self.component = check_component(component)
        self.cast = cast_name(cast)
        self._renames = Renames.of(names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, component={self.component!r})"

    @abstractmethod
    def _tensors(self) -> Mapping[str, Tensor]:
        """What there is, by the names that the rules apply to."""

    @abstractmethod
    def _read(self, tensor: str, boxes: Sequence[Box]) -> list[np.ndarray]:
        """Boxes of one tensor, in its logical dtype and in memory of their own."""

    @abstractmethod
    def _heads(self, tensors: Sequence[str]) -> Iterator[bytes]:
        """The first `HEAD_BYTES` of what is stored of each tensor."""

    def _values(self) -> Mapping[str, Any]:
        """What there is beside tensors, by the names that the rules apply to: values that a checkpoint can hold."""
        return {}

    def _path(self, new: str, name: str) -> Path:  # noqa: ARG002 - for formats with containers
        """The path in the component of what the rules call `new` and the format `name`."""
        return (("key", new),)

    def _pieces(self, tensor: str) -> Iterable[Box]:
        """Boxes that make up a tensor, in an order of their own, each cheap to read."""
        return pieces(self._tensors()[tensor])

    @property
    def title(self) -> str:
        """What it is called in errors."""
        return f"{self.format} checkpoint {self.path}"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of its component."""
        return sum(self._tensors()[name].nbytes for name in self._names.values() if name in self._tensors())

    @property
    def names(self) -> tuple[str, ...]:
        """Its one component."""
        return (self.component,)

    def leaves(self, component: str, rank: int | None = None) -> Mapping[str, StoredLeaf]:  # noqa: ARG002 - no leaf is a rank's own
        """The leaves of the component by layout name. Raises `NotFound` for any other component."""
        if component != self.component:
            raise NotFound(
                f"{self.title} is component {self.component!r} here, there is no {component!r}: give it that name with component="
            )
        return self._leaves

    def value(self, leaf: StoredLeaf) -> Any:
        """A value. Raises `NotFound` for a tensor."""
        found = self._values()
        if self._known[leaf.name] not in found:
            raise NotFound(f"{self.title} has no values that are called {leaf.name!r}")
        return found[self._known[leaf.name]]

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        """Boxes of array leaves, in the stored dtype and in memory of their own. A box costs its own bytes of memory."""
        for leaf, boxes in wanted:
            _check_boxes(leaf, boxes)
        return [[dtypes.to_stored(array) for array in self._read(self._known[leaf.name], boxes)] for leaf, boxes in wanted]

    def digest(self, leaf: StoredLeaf) -> str | None:
        """A digest over type, shape and all bytes of a leaf: reads it from end to end."""
        if leaf.name not in self._digests:
            name = self._known[leaf.name]
            if name in self._values():
                return digests.value_digest(values.encode(self._values()[name], where=leaf.name))
            tensor = self._tensors()[name]
            parts = [digests.digest(array) for box in self._pieces(name) for array in self.read([(leaf, [box])])[0]]
            self._digests[leaf.name] = _digest("ckpt/foreign-leaf", tensor.dtype, list(tensor.shape), parts)
        return self._digests[leaf.name]

    def describe(self) -> records.Origin:
        """What a run that begins from it records: the digest is over names, types, shapes, and the head of each tensor.

        It is over what the files hold, whatever it is taken as: `component`, `names` and `cast` may be set right until the run
        has a checkpoint of its own.
        """
        tensors = sorted(self._tensors().items())
        heads = self._heads([name for name, _ in tensors])
        told = [
            [name, tensor.dtype, list(tensor.shape), tensor.nbytes, digests.digest(head)]
            for (name, tensor), head in zip(tensors, heads, strict=True)
        ]
        told += [[name, values.encode(value, where=name)] for name, value in sorted(self._values().items())]
        return records.Origin(format=self.format, url=self.path.as_uri(), digest=_digest("ckpt/origin", self.format, told))

    @cached_property
    def _names(self) -> dict[str, str]:
        """The component's names → those that `_tensors` and `_values` have."""
        return self._renames.table([*self._tensors(), *self._values()], where=self.title)

    @cached_property
    def _leaves(self) -> dict[str, StoredLeaf]:
        leaves: dict[str, StoredLeaf] = {}
        for new, name in self._names.items():
            leaf = self._leaf(self._path(new, name), name)
            if leaves.setdefault(leaf.name, leaf) is not leaf:
                raise StructureMismatch(f"{self.title}: two tensors would both be called {shown(leaf.name)} here")
        return leaves

    @cached_property
    def _known(self) -> dict[str, str]:
        """Layout names → those that `_tensors` and `_values` have."""
        return {array_name(self.component, self._path(new, name)): name for new, name in self._names.items()}

    def _leaf(self, path: Path, name: str) -> StoredLeaf:
        tensor = self._tensors().get(name)
        if tensor is None:
            return readable.value_leaf(self.component, path)
        return readable.array_leaf(self.component, path, tensor.dtype, tensor.shape, prng_impl=tensor.prng_impl)

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {}


def absolute(path: str | os.PathLike[str]) -> FilePath:
    """`path`, beginning at the root. Raises `CallError` for one that no file can have, or that is not UTF-8 text."""
    told = shown(str(path))
    if "\0" in str(path):
        raise CallError(f"the path {told} has a zero byte, which no file's name can have")
    if any("\ud800" <= character <= "\udfff" for character in str(path)):
        raise CallError(f"the path {told} is not UTF-8 text, as TensorStore needs it: use another")
    try:
        found = FilePath(path).expanduser().absolute()
    except RuntimeError as error:
        raise CallError(f"the path {told}: there is no home directory of that name; write ./~… for a name with '~'") from error
    if len(str(found).encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in found.parts):
        raise CallError(f"the path {told} is longer than a file's can be, or a part of it than {MAX_PART_BYTES} bytes")
    return found


def pieces(tensor: Tensor, *, rows: int = 1) -> Iterator[Box]:
    """Boxes of whole rows, in order, that make up a tensor, each of at most `PIECE_BYTES` where a row has no more.

    They have a multiple of `rows` rows, if that many are no more than `PIECE_BYTES`.
    """
    if not tensor.shape or tensor.nbytes <= PIECE_BYTES:
        yield Box.whole(tensor.shape)
        return
    length = tensor.shape[0]
    most = max(1, PIECE_BYTES // (tensor.nbytes // length))
    step = most - most % rows if most >= rows else most
    for start in range(0, length, step):
        rest = tensor.shape[1:]
        yield Box((start, *(0 for _ in rest)), (min(start + step, length), *rest))


def _check_boxes(leaf: StoredLeaf, boxes: Sequence[Box]) -> None:
    shape = leaf.record.shape if isinstance(leaf.record, ArrayLeaf) else ()
    outside = [box for box in boxes if len(box.start) != len(shape) or not Box.whole(shape).contains(box)]
    if outside:
        raise CallError(f"{outside[0]} does not lie in {leaf.name!r}, whose shape is {shape}")


def _digest(*parts: Any) -> str:
    return digests.digest(canonical.encode(list(parts)))
