"""Where the entries of a state dict lie in a checkpoint: DCP's paths on one side, components and paths on the other. Pure.

An optimizer's state dict comes nested (`state`, `param_groups` with a list of groups) or flat (`state.<name>.exp_avg`,
`param_groups.<name>.lr`). Both are stored as `torchckpt.Checkpointer` stores an optimizer: each group once, as one
value under a name of its own (`group_key`). So it does not matter how many groups other ranks have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptcore import canonical, names, values
from ckptcore.components import kind_of
from ckptcore.digests import group_key
from ckptcore.errors import CallError
from ckptcore.names import Path, PathElement, show_path

DcpPath = Sequence[str | int]
"""The keys and indexes that lead to an entry of a nested state dict."""

GROUPS, PARAMS = "param_groups", "params"
Group = Mapping[str, Any]
GroupPlace = tuple[int | str, str]
"""Which group an entry belongs to (its index, or the parameter that a flat state dict names), and the entry's key there."""


def step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    """The step that a `checkpoint_id` names: the number at its end. Raises `CallError` if there is none."""
    found = re.search(r"(?:^|[^0-9])([0-9]{1,12})/?$", os.fspath(checkpoint_id))
    if found is None:
        raise CallError(
            f"checkpoint_id={checkpoint_id!r} names no step: end it with the number of completed updates ('step-100')"
        )
    return int(found[1])


def place(path: DcpPath, root: str | None) -> tuple[str, Path]:
    """The component and the path of an entry. `root` is the component of entries that lie at the top.

    Raises `CallError` for an entry whose first key cannot name a component.
    """
    if len(path) == 1 and root is not None:
        return root, (_element(path[0]),)
    try:
        component = names.check_component(str(path[0]))
    except CallError as error:
        raise CallError(
            f"state dict key {'.'.join(map(str, path))!r}: {error}. Pass {{'model': model.state_dict()}}, or say with"
            " root='model' which component the entries at the top belong to"
        ) from error
    return component, _split_flat(component, tuple(_element(key) for key in path[1:]))


def group_place(component: str, path: Path) -> GroupPlace | None:
    """The place of an entry in its parameter group; None for any other."""
    if kind_of(component) != "optimizer" or len(path) != 3 or path[0] != ("key", GROUPS) or path[2][0] != "key":
        return None
    return path[1][1], str(path[2][1])


def groups(component: str, entries: Mapping[GroupPlace, Any]) -> list[Group] | None:
    """The parameter groups that an optimizer's entries make up; None when their parameters have no names.

    Parameters of a flat state dict that have equal hyper-parameters are one group. Groups without parameters are left out.
    """
    by_group: dict[int | str, dict[str, Any]] = {}
    for (group, key), value in entries.items():
        by_group.setdefault(group, {})[key] = value
    if all(isinstance(group, int) for group in by_group):
        named = all(_is_named(group) for group in by_group.values())
        return [by_group[index] for index in sorted(by_group) if by_group[index][PARAMS]] if named else None
    merged: dict[bytes, dict[str, Any]] = {}
    for parameter, group in by_group.items():
        same = canonical.encode(encoded(group, component, (("key", GROUPS), ("key", parameter))))
        merged.setdefault(same, {**group, PARAMS: []})[PARAMS].append(parameter)
    return list(merged.values())


def group_path(group: Group) -> Path:
    """Where a group is stored."""
    return (("key", GROUPS), ("key", group_key(group[PARAMS])))


def is_group(component: str, path: Path, value: Any) -> bool:
    """Whether a stored value is a parameter group."""
    return kind_of(component) == "optimizer" and len(path) == 2 and path[0] == ("key", GROUPS) and _is_named(value)


def flat_entries(component: str, stored: Sequence[Group]) -> Iterator[tuple[tuple[str, str], Any]]:
    """The entries that stored groups have in a flat state dict, with their paths there."""
    for group in stored:
        for parameter in group[PARAMS]:
            for key, value in group.items():
                if key != PARAMS:
                    yield (component, f"{GROUPS}.{parameter}.{key}"), value


def encoded(value: Any, component: str, path: Path) -> Any:
    """A value as it is stored. Raises `UnsupportedLeaf`, naming the entry, for what has no place in the encoding."""
    return values.encode(value, where=show_path(component, path))


def _element(key: str | int) -> PathElement:
    return ("index", key) if isinstance(key, int) else ("key", key)


def _split_flat(component: str, path: Path) -> Path:
    """The path of an entry of a flat optimizer state dict, taken apart; any other as it is."""
    if kind_of(component) != "optimizer" or len(path) != 1:
        return path
    first, _, rest = str(path[0][1]).partition(".")
    name, _, key = rest.rpartition(".")
    return (("key", first), ("key", name), ("key", key)) if first in ("state", GROUPS) and name else path


def _is_named(group: Any) -> bool:
    """Whether a group tells its parameters by name: an optimizer's own state dict numbers them."""
    found = group.get(PARAMS) if isinstance(group, dict) else None
    return isinstance(found, list) and all(isinstance(name, str) for name in found)
