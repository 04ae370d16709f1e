"""How arrays lie in a database: keys, zarr metadata, OCDBT settings (spec: arrays).

| grid of the array | zarr arrays | keys |
| --- | --- | --- |
| regular | one | `<name>/zarr.json`, `<name>/c/<i>/<j>` |
| irregular | one per cell, of one chunk | `<name>/<i>.<j>/zarr.json`, `<name>/<i>.<j>/c/0/0` |

`<i>`, `<j>`, … is the chunk's position in the grid; the chunk of a 0-d array is `<name>/c`. A name
holds no `/`, so that no two arrays share a key. Chunks are stored whole: one at the edge of its
array is padded with the fill value to the chunk shape. A chunk is its elements in C order, little
endian, followed by their CRC-32C (4 bytes).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import tensorstore as ts

from ckptcore import dtypes
from ckptcore.digests import digest
from ckptcore.errors import CheckpointError, Damaged, StoreError, StoreFull, StoreUnavailable
from ckptcore.geometry import Box, Grid
from ckptcore.store import Store

Result = TypeVar("Result")

OCDBT_CONFIG: dict[str, Any] = {
    # Weights do not compress, and B-tree nodes are a few MiB in all.
    "compression": None,
    # zarr.json is inline, so that opening an array costs no read beyond the tree's; chunks are not.
    "max_inline_value_bytes": 512,
    "max_decoded_node_bytes": 1 << 20,
    "version_tree_arity_log2": 4,
}
"""Pinned: TensorStore refuses to combine databases whose configurations differ."""

DATA_FILE_BYTES = 256 << 20
"""Size at which OCDBT starts a new data file: few files, yet some are flushed while others are written."""

MANIFEST = "manifest.ocdbt"
"""The file of a database from which all of it is reached."""

CHECKSUM_BYTES = 4

ANSWER_TIMEOUT = 600.0
"""Seconds that one operation of TensorStore may take. It has no deadline of its own, and a dead server answers nothing."""

_SHOWN = 500
"""The most characters of a message of TensorStore."""
_STATUS = re.compile(r"([A-Z_]+): ")
_ERRNO = re.compile(r"\[os_error_code='(\d+)'\]")
_FULL = frozenset({"27", "28", "122"})  # EFBIG, ENOSPC, EDQUOT
_DAMAGE = frozenset({"DATA_LOSS", "OUT_OF_RANGE", "NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT"})
_REFUSED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})


@dataclass(frozen=True)
class Piece:
    """One zarr array: all of a `StoredArray`, or one cell of an irregular one.

    `prefix` ends in `/`; `origin` is where its first element lies in the array.
    """

    prefix: str
    dtype: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    origin: tuple[int, ...]

    @property
    def metadata_key(self) -> str:
        """Its key for `zarr.json`."""
        return f"{self.prefix}zarr.json"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The content of its `zarr.json`: nothing in it is open to choice."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk_shape)}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": _fill_value(self.dtype),
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        }

    @property
    def metadata_bytes(self) -> bytes:
        """`metadata` as it is written: sorted keys, no spare white space."""
        return json.dumps(self.metadata, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class StoredArray:
    """One array in a database: its stored name, stored dtype, shape, and how it is cut into chunks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    grid: Grid

    @cached_property
    def itemsize(self) -> int:
        """Bytes an element. Raises `UnsupportedFormat` for an unknown dtype."""
        return dtypes.itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.itemsize

    def piece(self, chunk: int) -> Piece:
        """The zarr array that holds a chunk."""
        if self.grid.chunk_shape is not None:
            return self._whole
        box = self.grid.cell(chunk)
        place = ".".join(map(str, self.grid.position(chunk)))
        return Piece(f"{self.name}/{place}/", self.dtype, box.shape, box.shape, box.start)

    def pieces(self) -> Iterator[Piece]:
        """Every zarr array, also of an array without chunks."""
        if self.grid.chunk_shape is not None:
            yield self._whole
        else:
            yield from (self.piece(chunk) for chunk in range(self.grid.size))

    def chunk_key(self, chunk: int) -> str:
        """The key of a chunk."""
        place = self.grid.position(chunk)
        if self.grid.chunk_shape is None:
            return "/".join([f"{self.name}/{'.'.join(map(str, place))}/c", *("0" for _ in place)])
        return "/".join([f"{self.name}/c", *map(str, place)])

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes of a chunk in storage, padding included, without the checksum."""
        return math.prod(self.piece(chunk).chunk_shape) * self.itemsize

    def all_keys(self) -> Iterator[str]:
        """Every key of the array."""
        yield from (piece.metadata_key for piece in self.pieces())
        places = product(*(map(str, range(count)) for count in self.grid.counts))
        if self.grid.chunk_shape is None:
            end = "/0" * len(self.shape)
            yield from (f"{self.name}/{'.'.join(place)}/c{end}" for place in places)
        else:
            yield from ("/".join((f"{self.name}/c", *place)) for place in places)

    def describe(self, chunk: int) -> str:
        """A chunk for people."""
        box: Box = self.grid.cell(chunk)
        return f"chunk {chunk} of array {self.name!r} ({self.dtype}, elements {box.start} to {box.stop})"

    @cached_property
    def _whole(self) -> Piece:
        return Piece(f"{self.name}/", self.dtype, self.shape, self.grid.chunk_shape or (), (0,) * len(self.shape))


def database(store: Store, prefix: str) -> dict[str, Any]:
    """TensorStore spec of the OCDBT database below `prefix`, to be opened in the store's context."""
    return {"driver": "ocdbt", "base": store.kvstore(prefix), "config": OCDBT_CONFIG, "target_data_file_size": DATA_FILE_BYTES}


def new_root(store: Store, prefix: str) -> dict[str, Any]:
    """As `database`, of a merged root that is not there yet, which refers to data and holds none.

    Its identity follows from where it lies, so that coordinators that make it at the same time make the same, and nothing is put
    before its content.
    """
    spec = database(store, prefix)
    identity = digest(prefix.encode()).partition(":")[2][:32]
    return {**spec, "config": {**spec["config"], "uuid": identity}, "assume_config": True}


def answer(future: ts.Future[Result], what: str, failure: Callable[[Exception, str], CheckpointError]) -> Result:
    """The result of one of TensorStore's futures. `failure` is `read_error` or `write_error`; `what` names it in errors."""
    try:
        return future.result(timeout=ANSWER_TIMEOUT)
    except TimeoutError as error:
        raise StoreUnavailable(f"{what}: no answer within {ANSWER_TIMEOUT:g} s; try again when the store answers") from error
    except (ValueError, OSError, NotImplementedError) as error:
        raise failure(error, what) from error


def write_error(error: Exception, what: str) -> StoreError:
    """The error of the project for one of TensorStore's while writing `what`."""
    text = f"{what}: {_message(error)}"
    number = _ERRNO.search(str(error))
    if (number and number[1] in _FULL) or re.search(r"\b507\b|quota exceeded|insufficient storage", str(error), re.IGNORECASE):
        return StoreFull(f"{text}. Make room, then save again; what was committed is untouched")
    if _status(error) in _REFUSED:
        return StoreError(f"{text}. Check the permissions of the run's directory or bucket")
    return StoreUnavailable(text)


def read_error(error: Exception, what: str) -> CheckpointError:
    """The error of the project for one of TensorStore's while reading `what` from a committed database.

    What is absent, short or undecodable is damage; anything else may pass.
    """
    text = f"{what}: {_message(error)}"
    if _status(error) in _DAMAGE:
        return Damaged(f"{text}. Use another checkpoint")
    if _status(error) in _REFUSED:
        return StoreError(f"{text}. Check the permissions of the run's directory or bucket")
    return StoreUnavailable(text)


def _status(error: Exception) -> str:
    """The absl status with which TensorStore's messages start; it leaves out that of invalid arguments."""
    match = _STATUS.match(str(error))
    return match[1] if match else "INVALID_ARGUMENT"


def _message(error: Exception) -> str:
    """The part of TensorStore's message that is for people. The reason stands at its end, after all that it was a part of."""
    text = str(error).split(" [tensorstore_spec=", 1)[0]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 2 :]}"


def _fill_value(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if dtype.startswith("complex"):
        return [0.0, 0.0]
    return 0 if dtype.startswith(("int", "uint")) else 0.0
