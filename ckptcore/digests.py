"""Digests: of bytes, of arrays, and of the structures that are made of them (spec: digests).

A digest is `<algorithm>:<hex>`. BLAKE3 is written; SHA-256 is accepted when checking.
The digest of a structure is the digest of the canonical JSON of a list that starts with a
domain tag, so that no two kinds of structure can have the same input:

| digest | canonical JSON of |
| --- | --- |
| leaf (array) | `["ckpt/leaf", dtype, shape, chunk shape or cuts, [chunk digests in grid order]]` |
| leaf (value) | `["ckpt/value", encoded value]` |
| component | `["ckpt/component", component, {stored name: leaf digest}]` |
| topology | `["ckpt/topology", the topology's record]` |
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import blake3 as _blake3
import msgspec
import numpy as np

from ckptcore import canonical
from ckptcore.errors import CallError, Damaged, InvalidRecord

if TYPE_CHECKING:
    from ckptcore import records
    from ckptcore.geometry import Grid

ALGORITHM = "blake3"

_DIGEST = re.compile(r"(blake3|sha256):[0-9a-f]{64}")

Data = bytes | bytearray | memoryview | np.ndarray


def digest(data: Data) -> str:
    """The BLAKE3 digest of `data`, as `blake3:<hex>`.

    An array counts as its logical bytes: C order, little endian, no padding. A C-contiguous
    array is hashed where it lies, without a copy and without holding the GIL.
    """
    return f"{ALGORITHM}:{_blake3.blake3(_buffer(data)).hexdigest()}"


def check(data: Data, expected: str, *, what: str) -> None:
    """Raise `Damaged` unless `data` has the digest `expected`; `what` names the object.

    Accepts BLAKE3 and SHA-256. Raises `InvalidRecord` when `expected` is no digest.
    """
    checking = Checking(expected, what=what)
    checking.update(_buffer(data))
    checking.finish()


class Checking:
    """`check` of bytes that come in parts."""

    def __init__(self, expected: str, *, what: str) -> None:
        if not _DIGEST.fullmatch(expected):
            raise InvalidRecord(f"{what}: {expected[:80]!r} is not a digest (blake3:… or sha256:…)")
        self._expected = expected
        self._what = what
        self._hasher = _blake3.blake3() if expected.startswith("blake3:") else hashlib.sha256()

    def update(self, part: bytes | memoryview) -> None:
        """The next bytes."""
        self._hasher.update(part)

    def finish(self) -> None:
        """There are no more bytes. Raises `Damaged` unless they have the digest."""
        found = f"{self._expected.partition(':')[0]}:{self._hasher.hexdigest()}"
        if found != self._expected:
            raise Damaged(f"{self._what}: the bytes have digest {found}, recorded is {self._expected}. Use another checkpoint.")


def leaf_digest(dtype: str, shape: Sequence[int], grid: Grid, chunks: Sequence[str]) -> str:
    """The digest of an array leaf: logical dtype, shape, grid, and chunk digests in grid order."""
    if grid.chunk_shape is not None:
        cells: list[Any] = list(grid.chunk_shape)
    else:
        cells = [list(cuts) for cuts in grid.cuts or ()]
    return _structure("ckpt/leaf", dtype, list(shape), cells, list(chunks))


def value_digest(encoded: Any) -> str:
    """The digest of a JSON leaf, as `values.encode` gives it."""
    return _structure("ckpt/value", encoded)


def component_digest(component: str, leaves: Mapping[str, str]) -> str:
    """The digest of a component, over the digest of each leaf by its stored name."""
    return _structure("ckpt/component", component, dict(leaves))


def topology_digest(topology: records.Topology) -> str:
    """The digest that every participant's receipt gives for the topology it sees."""
    return _structure("ckpt/topology", msgspec.to_builtins(topology))


def group_key(parameters: Sequence[str]) -> str:
    """What a group of an optimizer's parameters is called: its first one, and a digest of all their names.

    So groups of two ranks have one name only if they hold the same parameters.
    """
    return f"{parameters[0]}-{_structure('ckpt/group', list(parameters)).partition(':')[2][:8]}"


def _structure(*parts: Any) -> str:
    return digest(canonical.encode(list(parts)))


def flat(array: np.ndarray) -> np.ndarray:
    """An array's logical bytes: C order, little endian, without a copy where its memory already is that."""
    if array.dtype.hasobject:
        raise CallError(f"an array of {array.dtype} has no bytes of its own to digest")
    return np.ascontiguousarray(_little_endian(array)).reshape(-1).view(np.uint8)


def _buffer(data: Data) -> Any:
    """`data` as flat bytes, without a copy where its memory already is that."""
    if isinstance(data, np.ndarray):
        return flat(data)
    if isinstance(data, memoryview):
        return data.cast("B") if data.c_contiguous else data.tobytes()
    return data


def _little_endian(array: np.ndarray) -> np.ndarray:
    order = array.dtype.byteorder
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        return array.astype(array.dtype.newbyteorder("<"))
    return array
