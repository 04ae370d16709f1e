"""Which folder of an Orbax checkpoint holds the tree: it may lie below the folder of an item, and that below one of a step."""

from __future__ import annotations

import re
from pathlib import Path

from ckptcore import posix
from ckptcore.errors import CallError, NotFound, UnsupportedFormat
from ckptcore.geometry import SHOWN
from ckptcore.orbax_view import METADATA

_STEP = re.compile(r"(?:[A-Za-z][A-Za-z0-9\-]*_)?0*([0-9]{1,18})")
_AGGREGATE = "checkpoint"
_PREFERRED = ("default", "state")


def find(path: Path, *, item: str | None, step: int | None) -> Path:
    """The folder with `_METADATA` that is meant by `path`: itself, an item's, or an item's of a step's.

    Without `step` the newest, without `item` the only one, `default` or `state`. Raises `NotFound`, which lists what there is,
    and `CallError` if `step` or `item` is given where there is none to choose from.
    """
    if not path.is_dir():
        raise NotFound(f"there is no folder {path}")
    if _has_tree(path):
        return _chosen(path, item=item, step=step)
    below = _folders(path)
    steps = {int(match[1]): path / name for name in below if (match := _STEP.fullmatch(name))}
    items = [name for name in below if _has_tree(path / name)]
    if items and not steps:
        if step is not None:
            raise CallError(f"orbax checkpoint {path} is one step: leave step={step} out")
        return path / _item(path, items, item)
    if not steps:
        raise _nothing(path)
    if step is not None and step not in steps:
        raise NotFound(f"orbax checkpoint {path} has no step {step}; it has {sorted(steps)[-SHOWN:]}")
    return find(steps[max(steps) if step is None else step], item=item, step=None)


def _chosen(path: Path, *, item: str | None, step: int | None) -> Path:
    if item is not None or step is not None:
        what = f"item={item!r}" if item is not None else f"step={step}"
        raise CallError(f"orbax checkpoint {path} is a single tree: leave {what} out, or name the folder above it")
    return path


def _item(path: Path, items: list[str], item: str | None) -> str:
    if item is not None:
        if item not in items:
            raise NotFound(f"orbax checkpoint {path} has no item {item!r}; it has {items[:SHOWN]}")
        return item
    found = items if len(items) == 1 else [name for name in _PREFERRED if name in items]
    if not found:
        raise CallError(f"orbax checkpoint {path} has the items {items[:SHOWN]}: say which with item=")
    return found[0]


def _nothing(path: Path) -> Exception:
    if (path / _AGGREGATE).is_file():
        return UnsupportedFormat(
            f"{path} was written by an old release of Orbax, without {METADATA}: restore and save it with a newer one"
        )
    return NotFound(f"{path} is no Orbax checkpoint: neither it nor a folder in it has {METADATA}")


def _has_tree(path: Path) -> bool:
    return (path / METADATA).is_file()


def _folders(path: Path) -> list[str]:
    try:
        return sorted(name for name, is_directory in posix.scan(str(path)) if is_directory)
    except OSError as error:
        raise posix.translate(error, f"looking into {path}", of_run=False) from error
