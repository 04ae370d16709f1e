"""The runs below a prefix, whatever their folders are called. Reads only."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from ckptcore import names, posix
from ckptcore.errors import StoreError
from ckptcore.filestore import FileStore
from ckptcore.objectstore import ObjectStore
from ckptcore.store import Store
from ckptcore.storereads import exists

_ATTEMPTS = names.SUPERVISION.rstrip("/")

DEEPEST = 4
"""How many folders below a prefix a run is looked for."""


@dataclass(frozen=True)
class Place:
    """The URL of a run; or with an `error` that of a folder that could not be looked into.

    `begun`: False where a supervisor has launched a job that has not begun the run (spec: U-8).
    """

    url: str
    begun: bool = True
    error: StoreError | None = None


def find_runs(top: Store) -> Iterator[Place]:
    """Where runs lie: `top` itself, or the nearest folders below it that have a `run.json`, in the order of their names.

    Where only a supervisor has been no run is hidden: folders below are looked into all the same.

    Names need not be keys of a run (`run 42`). Hidden folders are passed over, and no symbolic link is followed. Raises a
    `StoreError` where `top` itself cannot be listed.
    """
    if isinstance(top, FileStore):
        yield from _in_folders(top.root, top.url, 0)
    elif exists(top, names.RUN):
        yield Place(top.url)  # without a listing of all that the run has
    elif isinstance(top, ObjectStore):
        yield from _in_keys(top.url, top.everything())


def _in_folders(path: str, url: str, depth: int) -> Iterator[Place]:
    try:
        inside = dict(posix.scan(path))
        attempted = names.RUN not in inside and bool(inside.get(_ATTEMPTS)) and _has_attempt(path)
    except OSError as error:
        refused = posix.translate(error, f"list {url}", of_run=False)
        if depth == 0:
            raise refused from error
        yield Place(url, error=refused)
        return
    if attempted:
        yield Place(url, begun=False)
    if names.RUN in inside:
        yield Place(url)
    elif depth < DEEPEST:
        folders = [name for name, is_folder in inside.items() if is_folder and not name.startswith(".")]
        for name in sorted(name for name in folders if name != _ATTEMPTS or not attempted):
            below = f"{url}/{urllib.parse.quote(os.fsencode(name))}"
            yield from _in_folders(os.path.join(path, name), below, depth + 1)  # noqa: PTH118 - as the store has its root


def _has_attempt(path: str) -> bool:
    top = os.path.join(path, _ATTEMPTS)  # noqa: PTH118 - as the store has its root
    numbers = [name for name, _ in posix.scan(top) if _is_plan([_ATTEMPTS, name, "plan.json"])]
    return any("plan.json" in dict(posix.scan(os.path.join(top, name))) for name in numbers)  # noqa: PTH118


def _in_keys(url: str, keys: list[str]) -> Iterator[Place]:
    parted = [key.split("/") for key in keys]
    runs = {tuple(parts[:-1]) for parts in parted if parts[-1] == names.RUN}
    attempted = {tuple(parts[:-3]) for parts in parted if _is_plan(parts[-3:])}
    for run in sorted(runs | attempted):
        inner = any(run[:depth] in runs for depth in range(len(run)))
        if len(run) <= DEEPEST and not inner and not any(name.startswith(".") for name in run):
            yield Place("/".join((url, *run)), begun=run in runs)


def _is_plan(parts: list[str]) -> bool:
    parsed = names.parse_attempt_key("/".join(parts))
    return parsed is not None and parsed[1] == "plan"
