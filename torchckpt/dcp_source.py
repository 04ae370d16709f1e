"""Checkpoints of `torch.distributed.checkpoint` as something to read box by box or to start a run from.

No file is trusted: `.metadata` is read without running it (`torchckpt.inert`), chunks by `torch.load` with
`weights_only=True`, unless somebody asks for more. Only the chunks that meet the boxes wanted are read, one at a time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO, Any, cast

import numpy as np
import torch

from ckptcore import dtypes
from ckptcore.errors import CheckpointError, Damaged, InvalidRecord, NotFound
from ckptcore.formats.boxes_in_files import OpenFile, opened
from ckptcore.formats.foreign import HEAD_BYTES, Foreign, Tensor
from ckptcore.formats.renames import Names
from ckptcore.geometry import SHOWN, Box
from torchckpt import leaves
from torchckpt.dcp_metadata import Chunk, StoredTensor, decode

METADATA = ".metadata"
MAX_METADATA_BYTES = 1 << 30


class DcpCheckpoint(Foreign):
    """The tensors of a folder that `torch.distributed.checkpoint.save` wrote, as one component.

    `path`: the folder with `.metadata` in it. `prefix`: which tensors, and what is taken away from their names; `model.` for
    what was saved as `{"model": model.state_dict(), …}`, the empty text for a bare state dict. `names`: rules
    from what is left to the component's names (`ckptcore.formats.renames`). `cast`: the floating-point dtype that a run which
    starts from here takes; None takes what is stored. What is no tensor is left out. `allow_pickle`: where torch refuses to load
    a tensor with `weights_only=True`, load it all the same, which runs whatever code the file names: for files of your own only.

    Raises, when it is first read: `NotFound`; a `DamageError` that names file and tensor for what is not whole and valid.
    """

    format = "dcp"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        component: str = "model",
        prefix: str = "model.",
        names: Names | None = None,
        cast: Any = None,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(path, component=component, names=names, cast=cast)
        self.prefix, self._allow_pickle = prefix, allow_pickle

    def _tensors(self) -> Mapping[str, Tensor]:
        return self._logical

    def _read(self, tensor: str, boxes: Sequence[Box]) -> list[np.ndarray]:
        stored, known = self._stored[tensor], self._logical[tensor]
        results = [np.empty(box.shape, dtypes.numpy_dtype(known.dtype)) for box in boxes]
        for chunk in stored.chunks:
            met = [
                (result, box, common) for result, box in zip(results, boxes, strict=True) if (common := box.intersect(chunk.box))
            ]
            if met:
                array = self._load(tensor, chunk)
                for result, box, common in met:
                    result[common.slices(box.start)] = array[common.slices(chunk.box.start)]
        return results

    def _pieces(self, tensor: str) -> Iterable[Box]:
        return [chunk.box for chunk in self._stored[tensor].chunks]

    def _heads(self, tensors: Sequence[str]) -> Iterator[bytes]:
        for name in tensors:
            chunks = self._stored[name].chunks[:1]
            yield b"".join(self._head(chunk) for chunk in chunks)

    def _head(self, chunk: Chunk) -> bytes:
        with opened(self.path / chunk.file) as file:
            return file.read(chunk.offset, min(chunk.length, HEAD_BYTES))

    @cached_property
    def _stored(self) -> dict[str, StoredTensor]:
        """The tensors with the prefix, without it."""
        path = self.path / METADATA
        with opened(path) as file:
            if file.stamp.size > MAX_METADATA_BYTES:
                raise InvalidRecord(f"{path}: {file.stamp.size} bytes are more than metadata may have ({MAX_METADATA_BYTES})")
            found = decode(file.read(0, file.stamp.size), where=str(path))
        taken = {name.removeprefix(self.prefix): tensor for name, tensor in found.items() if name.startswith(self.prefix)}
        if not taken:
            raise NotFound(f"{path} has no tensor that starts with {self.prefix!r}; it has {sorted(found)[:SHOWN]}: give prefix=")
        return taken

    @cached_property
    def _logical(self) -> dict[str, Tensor]:
        return {name: Tensor(_dtype(stored.dtype, self._where(name)), stored.shape) for name, stored in self._stored.items()}

    def _where(self, name: str) -> str:
        return f"{self.path / METADATA}: {(self.prefix + name)[:200]!r}"

    def _load(self, name: str, chunk: Chunk) -> np.ndarray:
        """A whole chunk, checked against what the metadata says of it."""
        where = f"{self.path / chunk.file}, chunk {list(chunk.box.start)} of {(self.prefix + name)[:200]!r}"
        with opened(self.path / chunk.file) as file:
            window = _Window(file, chunk.offset, chunk.length)
            found = _loaded_at_risk(window, where) if self._allow_pickle else _loaded(window, where)
        if not isinstance(found, torch.Tensor):
            raise Damaged(f"{where}: holds {type(found).__name__}, not a tensor")
        leaves.check(found, where)
        dtype = leaves.dtype_name(found.dtype, where)
        if (dtype, tuple(found.shape)) != (self._logical[name].dtype, chunk.box.shape):
            expected = f"{self._logical[name].dtype}{list(chunk.box.shape)}"
            raise Damaged(f"{where}: holds {dtype}{list(found.shape)}, the metadata has {expected}")
        return leaves.to_numpy(found)


def _dtype(name: str, where: str) -> str:
    return leaves.dtype_name(getattr(torch, name), where)


def _loaded(window: _Window, where: str) -> Any:
    try:
        return torch.load(cast("IO[bytes]", window), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged or hostile archive makes torch raise
        # The reason alone: around it torch's message advises to load the file unsafely.
        reason = str(error.__context__ or error).split(" Please use", maxsplit=1)[0]
        raise Damaged(f"{where}: torch.load refuses it: {reason[:300] or type(error).__name__}") from error


def _loaded_at_risk(window: _Window, where: str) -> Any:
    """As `_loaded`; what torch refuses is loaded without its safeguards, as the caller has asked for."""
    try:
        return _loaded(window, where)
    except Damaged:
        window.seek(0)
    try:
        return torch.load(cast("IO[bytes]", window), map_location="cpu", weights_only=False)  # asked for by name
    except Exception as error:
        raise Damaged(f"{where}: torch.load refuses it: {str(error)[:300] or type(error).__name__}") from error


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: OpenFile, offset: int, length: int) -> None:
        super().__init__()
        self._file, self._offset, self._length = file, offset, min(length, max(0, file.stamp.size - offset))
        self._at = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be gone to and fro in."""
        return True

    def tell(self) -> int:
        """The position from the part's start."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position of the part."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the part goes."""
        memory = memoryview(buffer).cast("B")
        count = max(0, min(len(memory), self._length - self._at))
        self._file.fill(self._offset + self._at, memory[:count])
        self._at += count
        return count
