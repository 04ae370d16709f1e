"""Export: the arrays of a component as safetensors files that Hugging Face's libraries read.

Streamed: a tensor goes through memory in pieces, so the model may be larger than the host. Every file is complete and
durable under a temporary name, `.<name>.<32 hex digits>.tmp`, before the first gets its own; the index comes last.
What an export that was killed has left under such names is removed by the next one into the same directory.
"""
# File descriptors and links are the point.
# ruff: noqa: PTH123

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ckptcore import dtypes, posix
from ckptcore.errors import CallError, NotFound, StructureMismatch
from ckptcore.formats import safetensors_header
from ckptcore.formats.foreign import Tensor, absolute, pieces
from ckptcore.formats.fresh_folder import made, temporary_name
from ckptcore.formats.renames import Names, Renames
from ckptcore.formats.safetensors import INDEX_SUFFIX, SUFFIX
from ckptcore.match import cast_name, is_floating
from ckptcore.names import show_path
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf

MAX_SHARD_BYTES = 5_000_000_000
"""The most bytes of tensors in one of several files, unless somebody asks for another number."""
_TEMPORARY = re.compile(r"\..+(\.safetensors|\.safetensors\.index\.json)\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True)
class _Item:
    """One tensor to write: where it comes from, and the dtype it is written in."""

    leaf: StoredLeaf
    record: ArrayLeaf
    dtype: str

    @property
    def nbytes(self) -> int:
        return Tensor(self.dtype, tuple(self.record.shape)).nbytes


def export_safetensors(
    source: Readable,
    path: str | os.PathLike[str],
    *,
    component: str,
    names: Names | None = None,
    dtype: Any = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Path]:
    """Write the arrays of a component as safetensors files; return their paths, the index last.

    `path`: one file, if it ends in `.safetensors`; else a directory, which gets `model.safetensors`, or several files of
    at most `max_shard_bytes` each with `model.safetensors.index.json`. `names`: the rules with which the files
    would be read again: from the names in the files to the component's (`ckptcore.formats.renames`). They are applied backwards;
    a rule to None leaves out what it matches of the component. `dtype`: floating-point arrays are cast to it. An array
    that is tied to another is not written twice, but under its own name where the other is left out. Nothing is overwritten.
    `progress` is told of stored bytes as they are read.

    Raises `CallError` if there are files already, and for a limit that is no positive number; `NotFound` if there is nothing to
    write; `StructureMismatch` for leaves that are no arrays, and for names that `names` does not bring back;
    `UnsupportedLeaf` for a dtype that the format lacks.
    """
    target = absolute(path)
    if type(max_shard_bytes) is not int or max_shard_bytes < 1:
        raise CallError(f"max_shard_bytes={max_shard_bytes!r}: expected a positive number of bytes")
    items = _items(source, component, names, cast_name(dtype))
    shards = _shards(items, None if target.suffix == SUFFIX else max_shard_bytes)
    home, files = (target.parent, [target.name]) if target.suffix == SUFFIX else (target, _file_names(len(shards)))
    try:
        _check_free(home, target if target.suffix == SUFFIX else None)
    except OSError as error:
        raise posix.translate(error, f"looking at {home}", of_run=False) from error
    contents: dict[str, Iterator[bytes | memoryview]] = {
        file: _content(source, shard, progress) for file, shard in zip(files, shards, strict=True)
    }
    if len(files) > 1:
        table = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        text = safetensors_header.index_text(table, sum(item.nbytes for item in items.values()))
        contents["model" + INDEX_SUFFIX] = iter([text])
    try:
        _publish(home, contents)
    except OSError as error:
        raise posix.translate(error, f"exporting to {target}", of_run=False) from error
    return [home / file for file in contents]


def _items(source: Readable, component: str, names: Names | None, cast: str | None) -> dict[str, _Item]:
    """What to write, by the names in the files."""
    back, forth = Renames.back(names), Renames.of(names)
    problems: list[str] = []
    items: dict[str, _Item] = {}
    leaves = source.leaves(component)
    kept = {layout_name for layout_name, leaf in leaves.items() if back(_own(leaf)) is not None}
    for leaf in leaves.values():
        record, where = leaf.record, show_path(component, leaf.record.path)
        own = _own(leaf)
        name = back(own)
        if name is None or (isinstance(record, ArrayLeaf) and record.alias in kept):
            continue
        if not isinstance(record, ArrayLeaf):
            if source.value(leaf) not in (None, {}, [], ()):
                problems.append(f"{where}: a value, which safetensors cannot hold; leave it out: names={{{own!r}: None}}")
        elif record.prng_impl is not None:
            problems.append(f"{where}: a random key, which safetensors cannot hold; leave it out: names={{{own!r}: None}}")
        elif name in items:
            problems.append(f"{where}: {name!r} is the name of {show_path(component, items[name].leaf.record.path)} too")
        elif name == safetensors_header.METADATA or forth(name) != own:
            problems.append(f"{where}: would be called {name!r}, which `names` reads as {forth(name)!r}")
        else:
            items[name] = _Item(leaf, record, cast if cast is not None and is_floating(record.dtype) else record.dtype)
    if problems:
        raise StructureMismatch(f"component {component!r} of {source.title} cannot be exported:", problems)
    if not items:
        raise NotFound(f"component {component!r} of {source.title} has no arrays to write")
    for item in items.values():
        safetensors_header.format_name(item.dtype, where=show_path(component, item.record.path))
    return items


def _own(leaf: StoredLeaf) -> str:
    """A leaf's name below its component."""
    return ".".join(str(element) for _, element in leaf.record.path)


def _shards(items: Mapping[str, _Item], limit: int | None) -> list[dict[str, _Item]]:
    """The tensors of each file, in order; a tensor that is larger than `limit` has a file to itself."""
    shards: list[dict[str, _Item]] = [{}]
    held = 0
    for name, item in items.items():
        if limit is not None and shards[-1] and held + item.nbytes > limit:
            shards.append({})
            held = 0
        shards[-1][name] = item
        held += item.nbytes
    return shards


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model" + SUFFIX]
    return [f"model-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]


def _check_free(home: Path, file: Path | None) -> None:
    if file is not None:
        taken = [file] if os.path.lexists(file) else []
    elif os.path.lexists(home) and not home.is_dir():
        raise CallError(f"{home} is not a directory; for one file give a path that ends in {SUFFIX}")
    else:
        taken = [entry for entry in home.iterdir() if entry.name.endswith((SUFFIX, INDEX_SUFFIX))] if home.exists() else []
    if taken:
        raise CallError(f"{min(taken)} is there already: nothing is overwritten, export to another path")


def _content(source: Readable, items: Mapping[str, _Item], progress: Callable[[int], object]) -> Iterator[bytes | memoryview]:
    """The bytes of one file, piece by piece."""
    tensors = {name: (item.dtype, tuple(item.record.shape)) for name, item in items.items()}
    header, order = safetensors_header.layout(tensors)
    return chain([header], (part for name in order for part in _bytes(source, items[name], progress)))


def _bytes(source: Readable, item: _Item, progress: Callable[[int], object]) -> Iterator[memoryview]:
    """The bytes of one tensor, a piece at a time. Pieces end where chunks do if that keeps them small."""
    tensor = Tensor(item.record.dtype, tuple(item.record.shape))
    for box in pieces(tensor, rows=(item.record.chunk_shape or (1,))[0]):
        stored = source.read([(item.leaf, [box])])[0][0]
        progress(stored.nbytes)
        array = dtypes.from_stored(stored, item.record.dtype)
        if item.dtype != item.record.dtype:
            with np.errstate(over="ignore"):  # a cast to fewer bits may give infinity, as it does everywhere
                array = array.astype(dtypes.numpy_dtype(item.dtype))
        if array.size:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _publish(home: Path, contents: Mapping[str, Iterator[bytes | memoryview]]) -> None:
    """Write every file under a temporary name, then give all of them their own, in order."""
    temporary = {file: home / temporary_name(file, _suffix(file)) for file in contents}
    with made(home), _shared(home):
        try:
            for file, parts in contents.items():
                _write(temporary[file], parts)
            for file in contents:
                _link(temporary[file], home / file)
            posix.fsync_directory(str(home))
            posix.fsync_directory(str(home.parent))
        finally:
            for path in temporary.values():
                path.unlink(missing_ok=True)


def _suffix(file: str) -> str:
    return INDEX_SUFFIX if file.endswith(INDEX_SUFFIX) else SUFFIX


@contextmanager
def _shared(home: Path) -> Iterator[None]:
    """Hold a lock that every export into a directory holds; whoever is alone there removes what others have left.

    The lock of a process that was killed is gone. Where a file system has no locks nothing is removed.
    """
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for entry in home.iterdir():
                if _TEMPORARY.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)
        _lock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            return False
        raise
    return True


def _write(path: Path, parts: Iterator[bytes | memoryview]) -> None:
    with open(path, "xb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _link(path: Path, to: Path) -> None:
    """As a rename, but one that never replaces a file, where the file system has hard links."""
    try:
        os.link(path, to)
    except FileExistsError as error:
        raise CallError(f"{to} is there already: nothing is overwritten, export to another path") from error
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        path.rename(to)
