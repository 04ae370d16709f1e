"""The store: put-if-absent, get, list and delete, under one run's root (spec: what a store must offer).

Keys are relative to the root and made of plain segments (`names.check_key`); nothing is
ever overwritten. `filestore` keeps them on a file system, `objectstore` in S3, GCS or
memory; `probe` finds out whether a store keeps its promises.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorstore as ts

from ckptcore.errors import CallError
from ckptcore.filestore import FileStore
from ckptcore.limits import Limits, limits
from ckptcore.objectstore import ObjectStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,221}")
FILE_THREADS = 4
"""The fewest threads for files, unless somebody asks for a number: they wait for a disk, which takes no core."""
_OBJECT_SEGMENT = re.compile(r"[^\x00-\x1f\x7f/\\?#%]+")


class Store(Protocol):
    """What a run is kept in. Safe to use from several threads.

    Every method raises `StoreUnavailable` (try again; nothing may be concluded),
    `StoreFull`, `UnsafeStore` (a rule is broken) or plain `StoreError` (no permission)
    about the store, and `InvalidRecord` for a key that is not a safe relative path.
    Prefixes are directories: `""` (the root) or segments that end in `/`.
    """

    @property
    def url(self) -> str:
        """The canonical URL of the run's root, without a slash at its end."""
        ...

    @property
    def driver(self) -> str:
        """`file`, `s3`, `gs` or `memory`."""
        ...

    @property
    def context(self) -> ts.Context:
        """The one TensorStore context in which the specs of `kvstore` must be opened."""
        ...

    @property
    def limits(self) -> Limits:
        """What one save, restore or copy may use at a time."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """Store `data` unless the key exists; return what is stored under it afterwards.

        The result equals `data` when this call, an earlier try of it, or an identical
        write put it there; anything else was there first and stays. Durable on return.
        """
        ...

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """The bytes `start:stop` of a value, clipped to its size as a slice is; None if the key is absent.

        As in a slice, a negative `start` counts from the end; then there is no `stop`.
        """
        ...

    def size(self, key: str, guess: int | None = None) -> int | None:
        """The size of a value in bytes; None if the key is absent. On an object store a right guess saves requests."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """The keys that start with `prefix` (any text, not only a directory), in order of their text."""
        ...

    def children(self, prefix: str) -> list[str]:
        """The names directly below the directory `prefix`, sorted, without slashes."""
        ...

    def delete(self, key: str) -> None:
        """Delete a key. An absent one is fine."""
        ...

    def delete_prefix(self, prefix: str) -> int:
        """Delete all that lies below the directory `prefix`, leftovers of killed writers included.

        Returns how many objects went; repeating it, or running it twice at a time, is fine.
        """
        ...

    def sync(self, prefix: str) -> None:
        """Make the directories below `prefix`, and those above it up to the root, durable."""
        ...

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """TensorStore kvstore spec of the directory `prefix`, for a process's own database."""
        ...


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What a URL cannot say about a store.

    Attributes:
      endpoint: URL of an S3-compatible service other than AWS.
      region: AWS region, if the service needs one.
      credentials: TensorStore's `aws_credentials`, for example `{"type": "profile", "profile": "work"}`;
        the usual sources of the environment when None. Secrets stay out of `repr`.
      single_writer: the caller vouches that no two processes ever write the same run, so that
        a store without atomic put-if-absent may be used.
      file_mode, dir_mode: permission bits of files and directories; those of the umask when None.
      timeout: seconds after which one operation gives up with `StoreUnavailable`.
      concurrency: requests in flight to an object store at a time.
      threads: threads of one checkpointer that read, write or digest at a time, and requests of its own that wait for the store;
        by default what suits the cores that the process may use (`ckptcore.limits`).
      bytes_in_flight: memory for chunks on their way, beyond the snapshot of a save and the results of a restore; by default
        256 MiB.
      context: TensorStore context to share caches, limits and `memory://` stores with.

    Raises `CallError` for `threads` or `bytes_in_flight` that are no positive integers, and for more than 1,024 threads.

    """

    endpoint: str | None = None
    region: str | None = None
    credentials: Mapping[str, Any] | None = field(default=None, repr=False)
    single_writer: bool = False
    file_mode: int | None = None
    dir_mode: int | None = None
    timeout: float = 60.0
    concurrency: int | None = None
    threads: int | None = None
    bytes_in_flight: int | None = None
    context: ts.Context | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.limits()

    def limits(self) -> Limits:
        """What `threads` and `bytes_in_flight` come to on this machine."""
        return limits(self.threads, self.bytes_in_flight)


def open_store(url: str | os.PathLike[str], storage: Storage | None = None) -> Store:
    """Open the store of a run: a path (`~` is the home directory), `file://`, `s3://`, `gs://` or `memory://`.

    Nothing is created or contacted. Raises `CallError` for a URL that names no store.
    """
    storage = storage or Storage()
    text = os.fsdecode(os.fspath(url))
    if _SCHEME.match(text) is None or not isinstance(url, str):
        return _file_store(_expanded(text), storage)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        return _file_store(_path_of(text), storage)
    if separator and scheme in ("s3", "gs"):
        return _bucket_store(scheme, rest, storage)
    if separator and scheme == "memory":
        return _object_store("memory", {"driver": "memory"}, _object_prefix(text, rest), storage)
    raise CallError(f"{text!r} is not a store: use a path, file:///…, s3://bucket/prefix, gs://bucket/prefix or memory://name")


def overlap(one: str, other: str) -> bool:
    """Whether two stores, by their URLs, are one, or lie in each other; on file systems symbolic links are followed."""
    places = [_place(one), _place(other)]
    return places[0].startswith(places[1]) or places[1].startswith(places[0])


def _place(url: str) -> str:
    """A store's URL, ending in a slash; on file systems without the symbolic links on the way."""
    scheme, _, path = url.partition("://")
    return f"{scheme}://{os.path.realpath(urllib.parse.unquote(path)) if scheme == 'file' else path}/"


def _file_store(path: str, storage: Storage) -> FileStore:
    if "\0" in path or not path or any("\ud800" <= character <= "\udfff" for character in path):
        raise CallError(f"{path!r} is not a path of UTF-8 text, as TensorStore needs it")
    root = os.path.abspath(path)  # noqa: PTH100 - symbolic links above the root stay as they are
    if root == os.path.dirname(root):  # noqa: PTH120
        raise CallError("a run cannot lie at the root of the file system: name a directory")
    return FileStore(
        root,
        single_writer=storage.single_writer,
        file_mode=storage.file_mode,
        dir_mode=storage.dir_mode,
        timeout=storage.timeout,
        context=_context(storage),
        limits=storage.limits(),
    )


def _expanded(path: str) -> str:
    """A plain path with the home directory in the place of `~`, as shells do."""
    expanded = os.path.expanduser(path)  # noqa: PTH111 - pathlib would also change the rest
    if expanded.startswith("~"):
        raise CallError(f"{path!r}: there is no home directory of that name; for a directory that starts with '~' write ./~…")
    return expanded


def _path_of(url: str) -> str:
    """The absolute path of a `file://` URL."""
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote_to_bytes(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.startswith(b"/"):
        raise CallError(f"{url!r} must be file:// and an absolute path, with '?' and '#' percent-encoded")
    return os.fsdecode(path)


def _bucket_store(scheme: str, rest: str, storage: Storage) -> ObjectStore:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise CallError(f"{scheme}://{rest} does not name a bucket: use {scheme}://bucket/prefix")
    driver = _s3_spec(storage) if scheme == "s3" else _gs_spec(storage)
    return _object_store(scheme, {**driver, "bucket": bucket}, _object_prefix(f"{scheme}://{rest}", prefix), storage)


def _s3_spec(storage: Storage) -> dict[str, Any]:
    # With an endpoint of its own TensorStore does not send preconditions unless it is told to.
    spec: dict[str, Any] = {"driver": "s3", "use_conditional_write": True}
    if storage.endpoint is not None:
        spec["endpoint"] = storage.endpoint
    if storage.region is not None:
        spec["aws_region"] = storage.region
    if storage.credentials is not None:
        spec["aws_credentials"] = dict(storage.credentials)
    return spec


def _gs_spec(storage: Storage) -> dict[str, Any]:
    if storage.endpoint or storage.region or storage.credentials:
        raise CallError(
            "gs:// takes no endpoint, region or credentials: use Google's application default credentials "
            "(GOOGLE_APPLICATION_CREDENTIALS) and, for another endpoint, TENSORSTORE_GCS_HTTP_URL"
        )
    return {"driver": "gcs"}


def _object_prefix(url: str, prefix: str) -> str:
    """Check a prefix and return it with a slash at its end, or empty for a whole bucket."""
    prefix = prefix.rstrip("/")
    if not prefix and not url.startswith("memory:"):
        return ""
    segments = prefix.split("/")
    if not all(_OBJECT_SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in segments):
        raise CallError(f"{url!r}: the prefix must be segments without '?', '#', '%', '\\', '.' or '..' between single slashes")
    return prefix + "/"


def _object_store(driver: str, spec: dict[str, Any], prefix: str, storage: Storage) -> ObjectStore:
    url = "/".join(part for part in (f"{driver}:/", spec.get("bucket"), prefix.rstrip("/")) if part)
    requests = {} if driver == "memory" else {f"{spec['driver']}_request_concurrency": storage.concurrency or storage.threads}
    context = _context(storage, **requests)
    told = {"timeout": storage.timeout, "limits": storage.limits(), "single_writer": storage.single_writer}
    return ObjectStore(url, driver, {**spec, "path": prefix}, context=context, **told)


def _context(storage: Storage, **requests: int | None) -> ts.Context:
    """TensorStore's context for a store: its limits are those asked for, in a context of the caller's too.

    Without a context of the caller's, its threads suit the cores that this process may use, which TensorStore does not ask for.
    """
    own = storage.threads or (None if storage.context is not None else max(storage.limits().threads, FILE_THREADS))
    wanted = {"file_io_concurrency": own, "data_copy_concurrency": own, **requests}
    spec = {name: {"limit": limit} for name, limit in wanted.items() if limit is not None}
    return ts.Context(spec, parent=storage.context) if storage.context is not None else ts.Context(spec)
