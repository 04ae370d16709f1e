"""A place that holds a run: a directory, or a prefix of a bucket.

The suite looks at what an implementation left there, and damages it on purpose. So unlike a store of the spec (chapter 2) a
place overwrites, and promises nothing to processes that use it at the same time. Names with a segment that starts with a dot are
no keys (S-11) and are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import tensorstore as ts

_TIMEOUT = 60.0
"""Seconds that one request to an object store may take."""


class Place(Protocol):
    """Objects by key, relative to the root of a run."""

    url: str

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that start with `prefix`, sorted."""
        ...

    def read(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        ...

    def size(self, key: str) -> int | None:
        """The object's size in bytes, or None if there is none."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Store an object, whatever is there."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is no error."""
        ...

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """The TensorStore key-value store below `prefix`, which is empty or ends in a slash."""
        ...


def open_place(url: str, storage: Mapping[str, str] | None = None) -> Place:
    """The place of a URL, `file:///…` or `s3://bucket/prefix`; `storage` may give `endpoint` and `region` for S3.

    S3's credentials are those of the environment. Raises `ValueError` for another URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return FilePlace(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return S3Place(*_bucket(url), storage or {})
    raise ValueError(f"{url!r} is neither file:///… nor s3://bucket/prefix")


def clear(url: str, storage: Mapping[str, str]) -> None:
    """Remove every object below a URL `s3://bucket/prefix`, whatever its name."""
    S3Place(*_bucket(url), storage).clear()


def copy_all(source: Place, target: Place) -> None:
    """Copy every object of `source` to `target`, the ledger last."""
    for key in sorted(source.keys(), key=lambda key: (key.startswith("ledger/"), key)):
        data = source.read(key)
        if data is not None:
            target.write(key, data)


class FilePlace:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.absolute().as_uri()

    def keys(self, prefix: str = "") -> list[str]:
        """See `Place.keys`."""
        found = []
        for folder, names, files in os.walk(self.root / prefix.rpartition("/")[0]):
            names[:] = [name for name in names if not name.startswith(".")]
            below = Path(folder).relative_to(self.root)
            found += [(below / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(key for key in found if key.startswith(prefix))

    def read(self, key: str) -> bytes | None:
        """See `Place.read`."""
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, key: str) -> int | None:
        """See `Place.size`."""
        path = self.root / key
        return path.stat().st_size if path.is_file() else None

    def write(self, key: str, data: bytes) -> None:
        """See `Place.write`."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        """See `Place.delete`."""
        (self.root / key).unlink(missing_ok=True)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Place.kvstore`."""
        return {"driver": "file", "path": f"{self.root.absolute()}/{prefix}"}


class S3Place:
    """A prefix of an S3 bucket."""

    def __init__(self, bucket: str, prefix: str, storage: Mapping[str, str]) -> None:
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._spec = _s3_spec(bucket, prefix, storage)
        self._kvstore = ts.KvStore.open(self._spec).result(timeout=_TIMEOUT)

    def keys(self, prefix: str = "") -> list[str]:
        """See `Place.keys`."""
        below = ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "")
        found = [key.decode() for key in self._kvstore.list(below).result(timeout=_TIMEOUT)]
        return sorted(key for key in found if not any(segment.startswith(".") for segment in key.split("/")))

    def read(self, key: str) -> bytes | None:
        """See `Place.read`."""
        result = self._kvstore.read(key).result(timeout=_TIMEOUT)
        return bytes(result.value) if result.state == "value" else None

    def size(self, key: str) -> int | None:
        """See `Place.size`. The object is read whole: the driver tells no sizes."""
        data = self.read(key)
        return None if data is None else len(data)

    def write(self, key: str, data: bytes) -> None:
        """See `Place.write`."""
        self._kvstore.write(key, data).result(timeout=_TIMEOUT)

    def delete(self, key: str) -> None:
        """See `Place.delete`."""
        self._kvstore.write(key, None).result(timeout=_TIMEOUT)

    def clear(self) -> None:
        """Remove every object, those too that are no keys."""
        self._kvstore.delete_range(ts.KvStore.KeyRange()).result(timeout=_TIMEOUT)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Place.kvstore`."""
        return {**self._spec, "path": self._spec["path"] + prefix}


def _bucket(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


def _s3_spec(bucket: str, prefix: str, storage: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{prefix}/" if prefix else ""}
    if "endpoint" in storage:
        spec["endpoint"] = storage["endpoint"]
    if "region" in storage:
        spec["aws_region"] = storage["region"]
    if "AWS_ACCESS_KEY_ID" in os.environ:  # the default search would complain of each place without credentials
        spec["aws_credentials"] = {"type": "environment"}
    return spec
