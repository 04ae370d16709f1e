"""Optimizers: the state of every parameter, and the hyper-parameters of every group, read and filled where they lie.

```
state         / <name of the parameter>            / <key> …   tensors, and values as `nested.split` parts them
param_groups  / <`group_key` of the names>                     the group's dict; `params` is the list of names
```

Neither `get_optimizer_state_dict` is used, which steps a fresh optimizer, nor `load_state_dict`, which casts moments to the
parameter's dtype. Tensors that the target has already are filled in place, so that whoever holds them (a CUDA graph, say) sees
what was restored; others are made as the optimizer's own first step would. Afterwards the state is what was saved: of a
parameter that had none it is gone.

Hyper-parameters are found by parameter, so the target may group parameters otherwise, as long as those of one group
were saved with equal ones. (A scheduler counts groups: beside one, keep their order.) All of them come from the
checkpoint, also what chooses an implementation (`foreach`, `fused`, `capturable`). torch adds options to its optimizers, switched
off: a key that is None or False on one side may be absent on the other. So may what schedulers put into groups. Any
other difference of keys is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ckptcore import nested
from ckptcore.backend import Found
from ckptcore.digests import group_key
from ckptcore.errors import InvalidRecord, StructureMismatch, UnsupportedLeaf
from ckptcore.names import Path, PathElement, show_path
from torchckpt import leaves as kinds
from torchckpt import shards
from torchckpt.objects import is_off, state_of
from torchckpt.optimizer_state import Member, State, on_device
from torchckpt.slots import Leaf, Slot

Names = Mapping[int, str]
"""`id(parameter)` → its name."""

STATE: PathElement = ("key", "state")
GROUPS: PathElement = ("key", "param_groups")
SCHEDULED = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
"""What torch's schedulers put into groups when they are made: a target has it once its scheduler is built."""
_NO_OPTION = frozenset({"params", "param_names"})


def leaves(optimizer: torch.optim.Optimizer, names: Names, path: Path, component: str) -> list[Leaf]:
    """The state of all parameters that have one, and all groups that are not empty. Nothing is copied, no step is run.

    Raises `UnsupportedLeaf` for a parameter without a name, for two of one name, for an optimizer with a state beyond
    those of its parameters, or with a `state_dict` of its own.
    """
    where = show_path(component, path)
    members = _members(optimizer, names, where)
    _refuse_strays(optimizer, members, where)
    trees: dict[Path, Any] = {}
    for member in members:
        trees |= {_state_path(member, key): item for key, item in optimizer.state.get(member.tensor, {}).items()}
    trees |= {
        (GROUPS, ("key", group_key([member.name for member in group]))): _hyper_parameters(group) for group in _groups(members)
    }
    return [
        Leaf(path=(*path, *at, *below), data=item)
        for at, tree in trees.items()
        for below, item in nested.split(tree, kinds.is_array, where=show_path(component, (*path, *at)))
    ]


def slots(optimizer: torch.optim.Optimizer, names: Names, path: Path, component: str) -> list[Slot]:
    """One slot for all groups, and then an optional one for each parameter's state; put in place in this order.

    Raises `UnsupportedLeaf` as `leaves` does. `prepare` raises `StructureMismatch` if the hyper-parameters of the target's groups
    do not follow from the checkpoint's, or if nobody can say how a state is divided over ranks.
    """
    where = show_path(component, path)
    members = _members(optimizer, names, where)
    if not members:
        return []
    at: Path = (*path, GROUPS)
    made = [Slot(path=at, prepare=partial(_prepare_groups, optimizer, members, show_path(component, at)))]
    places = shards.Places()
    for member in members:
        at = (*path, *_state_path(member))
        kinds.check(member.tensor, show_path(component, at))
        state = State(optimizer, member, places, show_path(component, at))
        made.append(Slot(path=at, prepare=state.prepare, boxes_of=state.boxes_of, optional=True))
    return made


def _state_path(member: Member, *keys: Any) -> Path:
    return (STATE, ("key", member.name), *(("key", key) for key in keys))


def _members(optimizer: torch.optim.Optimizer, names: Names, where: str) -> list[Member]:
    """All parameters, group by group."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        raise UnsupportedLeaf(
            f"{where}: {type(optimizer).__name__} has its own state_dict: its state is more than `state` and `param_groups`. "
            "Give the torch optimizer inside of it, or an object around it with get_state() and set_state(state)."
        )
    members = [
        Member(name=_name(names, group, position, f"{where}: parameter {position} of group {number}"), tensor=tensor, group=group)
        for number, group in enumerate(optimizer.param_groups)
        for position, tensor in enumerate(group["params"])
    ]
    double = [name for name, count in Counter(member.name for member in members).items() if count > 1]
    if double:
        raise UnsupportedLeaf(f"{where}: several of its parameters are called {double[0]!r}; give each module as a component too")
    return members


def _name(names: Names, group: Mapping[str, Any], position: int, where: str) -> str:
    tensor = group["params"][position]
    if id(tensor) in names:
        return names[id(tensor)]
    if "param_names" in group:
        return group["param_names"][position]
    raise UnsupportedLeaf(
        f"{where} (shape {tuple(tensor.shape)}) belongs to no module in this save: give its module as a component too, "
        "or make the optimizer from named_parameters()"
    )


def _groups(members: Sequence[Member]) -> list[list[Member]]:
    """The members of each group."""
    groups: dict[int, list[Member]] = {}
    for member in members:
        groups.setdefault(id(member.group), []).append(member)
    return list(groups.values())


def _hyper_parameters(group: Sequence[Member]) -> dict[str, Any]:
    options = {key: value for key, value in group[0].group.items() if key not in _NO_OPTION}
    return {**options, "params": [member.name for member in group]}


def _refuse_strays(optimizer: torch.optim.Optimizer, members: Sequence[Member], where: str) -> None:
    """Refuse states that would not be stored, or not as the dicts that torch's optimizers have."""
    known = {id(member.tensor): member.name for member in members}
    for key, state in optimizer.state.items():
        if id(key) not in known and state:
            shown = f"a tensor of shape {tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)
            raise UnsupportedLeaf(f"{where}: it has a state for {shown}, which is not a parameter of its groups; remove it")
        if id(key) in known and not isinstance(state, dict):
            raise UnsupportedLeaf(f"{where}: the state of {known[id(key)]!r} is a {type(state).__name__}, not a dict")


def _prepare_groups(
    optimizer: torch.optim.Optimizer, members: Sequence[Member], where: str, found: Found | None
) -> Callable[[], None]:
    """Find the hyper-parameters of every group of the target."""
    if found is None:
        raise InvalidRecord(f"{where}: no group was found")
    saved = _saved_groups(state_of(found, where), where)
    told = any(leaf.converted for leaf in (found.below or {}).values())
    differences: list[str] = []
    updates: list[Callable[[], None]] = []
    for group in _groups(members):
        problems = list(_group_problems(group, saved))
        differences += problems
        if not problems:
            updates.append(_update(group, saved[group[0].name], told=told))
    if differences:
        raise StructureMismatch(f"{where}: the target's groups do not fit the checkpoint's:", differences)

    def apply() -> None:
        for update in updates:
            update()
        for member in members:
            optimizer.state.pop(member.tensor, None)  # the slots of those that were saved with one put it back

    return apply


def _saved_groups(tree: Any, where: str) -> dict[str, dict[str, Any]]:
    """Parameter → the group it was saved in."""
    found: dict[str, dict[str, Any]] = {}
    for name, group in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(group, dict) or not isinstance(group.get("params"), list):
            raise InvalidRecord(f"{where}[{name!r}]: this is no group of an optimizer's parameters")
        options = {key: value for key, value in group.items() if key not in _NO_OPTION}
        for parameter in group["params"]:
            # Stages that share a parameter each have it in a group of theirs.
            if found.setdefault(parameter, options) is not options and _unequal(found[parameter], options):
                raise StructureMismatch(
                    f"{where}: the checkpoint has {parameter!r} in two groups", _unequal(found[parameter], options)
                )
    return found


def _group_problems(group: Sequence[Member], saved: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    missing = [member.name for member in group if member.name not in saved]
    yield from (f"{name!r} is a parameter of the target's optimizer, not of the checkpoint's" for name in missing)
    if missing:
        return
    first, options = group[0].name, saved[group[0].name]
    for member in group[1:]:
        other = saved[member.name]
        unequal = [] if other is options else _unequal(options, other)
        if unequal:
            shown = ", ".join(f"{key} {options.get(key)!r} and {other.get(key)!r}" for key in unequal)
            yield f"{first!r} and {member.name!r} are in one group of the target, but were saved with {shown}"
            return
    held = {key: value for key, value in group[0].group.items() if key not in _NO_OPTION}
    for key in sorted((held.keys() ^ options.keys()) - SCHEDULED):
        if not is_off(held.get(key, options.get(key))):
            side = "target" if key in held else "checkpoint"
            yield f"the option {key!r} of the group of {first!r} is only in the {side} ({held.get(key, options.get(key))!r})"


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The options that two groups do not have alike."""
    return [key for key in sorted({*one, *other}) if not _same(one.get(key), other.get(key))]


def _same(one: Any, other: Any) -> bool:
    """Whether two hyper-parameters are equal, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(np.all(one == other))


def _update(group: Sequence[Member], saved: Mapping[str, Any], *, told: bool) -> Callable[[], None]:
    """Prepare to give a group its hyper-parameters; a tensor is filled in place if the target's is one too.

    `told`: they were not saved but told to a conversion, which knows numbers only; the target knows what is a tensor.
    """
    held, tensor = group[0].group, group[0].tensor
    fills: list[tuple[torch.Tensor, torch.Tensor]] = []
    values: dict[str, Any] = {}
    for key, value in saved.items():
        old = held.get(key)
        if isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor) and _alike(old, value):
            fills.append((old, value))
        elif told and isinstance(old, torch.Tensor) and isinstance(value, float) and _is_number(old):
            fills.append((old, torch.tensor(value, dtype=old.dtype)))
        else:
            values[key] = _option(old, value, tensor.device if on_device(saved) else None)

    def apply() -> None:
        for old, value in fills:
            shards.local(old).copy_(value)
        held.update(values)

    return apply


def _option(old: Any, value: Any, device: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        return value if device is None else value.to(device)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]  # nested.split has no numpy scalars
    if isinstance(value, list) and isinstance(old, tuple) and any(isinstance(part, torch.Tensor) for part in value):
        return tuple(_option(None, part, device) for part in value)  # nor tuples with arrays inside
    return value


def _is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one number, as a captured graph needs it."""
    return tensor.shape == () and tensor.is_floating_point()


def _alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.dtype == new.dtype and old.shape == new.shape
