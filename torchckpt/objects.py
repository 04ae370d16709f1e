"""Objects with state: learning-rate schedulers, `GradScaler`, stateful loaders, generators, and users' own.

Their state is taken by `get_state` or `state_dict`, and put back by `set_state` or `load_state_dict`. A target is
never asked for its state: a fresh `StatefulDataLoader` would start its workers to give one.

States come back as they were, tensors as whole tensors on the CPU and numpy arrays as such, with the exceptions of
`nested.split` and one more: an `OrderedDict` comes back as a dict. The `Counter` of a scheduler comes back as one. Functions
have no place in a checkpoint: torch's schedulers leave them out, and keep those that the target was built with (also the
arguments of a `functools.partial`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ckptcore import components as parts
from ckptcore import nested
from ckptcore.backend import Found
from ckptcore.errors import InvalidRecord, StructureMismatch
from ckptcore.names import Path, show_path
from torchckpt.leaves import from_numpy, is_array
from torchckpt.slots import Leaf, Slot

NUMPY = "numpy"
"""The `memory_kind` of arrays that were numpy's."""


def leaves(obj: Any, path: Path, component: str) -> list[Leaf]:
    """The state of an object with `get_state` or `state_dict`: arrays, and the largest parts without any as one value each.

    Raises `UnsupportedLeaf`, naming the place, for endless nesting.
    """
    where = show_path(component, path)
    state = _plain(_counters(obj, parts.get_state(obj), dict), (), where)
    return [Leaf(path=(*path, *below), data=item) for below, item in nested.split(state, is_array, where=where)]


def slot(obj: Any, path: Path, component: str) -> Slot:
    """What an object's state is put back through. The object is neither asked nor changed before that.

    `prepare` raises `StructureMismatch` for the state of another kind of scheduler, or of one over other groups, and for
    a `GradScaler` that is enabled on one side only. Putting it in place raises `CallError` if the object refuses the state.
    """
    return Slot(path=path, prepare=partial(_prepare, obj, show_path(component, path)))


def state_of(found: Found, where: str) -> Any:
    """What was found below a slot as nested dicts and lists of tensors, numpy arrays and values. `where` names it in errors."""
    if found.below is None:
        raise InvalidRecord(f"{where}: not found as a tree")
    return nested.build({path: content(path, leaf, where) for path, leaf in found.below.items()}, where=where)


def content(path: Path, leaf: Found, where: str) -> Any:
    """One leaf below a slot: a tensor, a value, or the numpy array that was saved (also the bytes of a long bytes object)."""
    if leaf.boxes is None:
        return leaf.value
    array = next(iter(leaf.boxes.values()))
    if leaf.memory_kind == NUMPY or path[-1:] == (nested.BYTES,):
        return array
    return from_numpy(array, show_path(where, path))


def inexact(obj: Any) -> str | None:
    """Why a run that restores an object cannot go on bit for bit, as far as that can be seen; None otherwise."""
    if isinstance(obj, DataLoader) and obj.generator is None:
        return (
            f"a {type(obj).__name__} without a generator draws from torch's global one whenever it is started, so once more in a"
            " resumed run: make it with generator=torch.Generator()"
        )
    return None


def is_off(value: Any) -> bool:
    """Whether an option is not in use: libraries add and remove options that are off by default."""
    return value is None or value is False


def _prepare(obj: Any, where: str, found: Found | None) -> Callable[[], None]:
    if found is None:
        raise InvalidRecord(f"{where}: nothing was found for {type(obj).__name__}")
    state = state_of(found, where)
    problems = list(_problems(obj, state))
    if problems:
        raise StructureMismatch(f"{where}: the checkpoint's state does not fit the target's {type(obj).__name__}:", problems)
    return partial(parts.set_state, obj, _counters(obj, state, Counter), where=where)


def _problems(obj: Any, state: Any) -> Iterator[str]:
    """Why an object would take `state` and not be what was saved."""
    if isinstance(obj, LRScheduler) and isinstance(state, Mapping):
        yield from _scheduler_problems(obj, state)
    elif isinstance(obj, torch.amp.GradScaler) and bool(state) != obj.is_enabled():
        saved, target = ("enabled", "disabled") if state else ("disabled", "enabled")
        yield f"it was saved {saved}, the target is {target}: build it alike, or leave it out (components=)"


def _scheduler_problems(scheduler: LRScheduler, state: Mapping[str, Any]) -> Iterator[str]:
    """Loading updates the attributes of whatever scheduler there is, so another kind's would mix with its own."""
    if not type(scheduler).state_dict.__module__.startswith("torch.optim."):
        return  # a state of the user's own making
    held = {key: value for key, value in vars(scheduler).items() if key != "optimizer" and not isinstance(value, FunctionType)}
    for key in sorted(held.keys() ^ state.keys()):
        if not key.startswith("_") and not is_off(held.get(key, state.get(key))):
            yield f"{key!r} is only in the {'target' if key in held else 'checkpoint'}: schedulers of different kinds"
    groups = len(scheduler.optimizer.param_groups)
    rates = state.get("base_lrs")
    if isinstance(rates, list) and len(rates) != groups:
        yield f"it has learning rates for {len(rates)} parameter groups, the target's optimizer has {groups}"
    for position, (mine, saved) in enumerate(_pairs(held.get("lr_lambdas"), state.get("lr_lambdas"))):
        is_function = isinstance(mine, FunctionType)
        if is_function and saved:
            yield f"lr_lambdas[{position}] was an object with state, the target has a function"
        if not is_function and saved is None and getattr(mine, "__dict__", None):
            yield f"lr_lambdas[{position}] was a function, the target has an object with state"
    yield from _children_problems(held.get("_schedulers"), state.get("_schedulers"))


def _children_problems(held: Any, saved: Any) -> Iterator[str]:
    if isinstance(held, list | tuple) and isinstance(saved, list) and len(held) != len(saved):
        yield f"it holds {len(saved)} schedulers, the target's {len(held)}"
    for position, (child, state) in enumerate(_pairs(held, saved)):
        yield from (f"_schedulers[{position}]: {problem}" for problem in _problems(child, state))


def _counters(obj: Any, state: Any, make: type[dict[Any, Any]]) -> Any:
    """The state of a scheduler with a `make` wherever the scheduler has a counter: they are stored as dicts."""
    if not isinstance(obj, LRScheduler) or type(state) is not dict:
        return state
    held = vars(obj)
    made = {key: make(value) if type(held.get(key)) is Counter else value for key, value in state.items()}
    if isinstance(state.get("_schedulers"), list):
        made["_schedulers"] = [_counters(*pair, make) for pair in _pairs(held.get("_schedulers"), state["_schedulers"])]
    return made


def _pairs(held: Any, saved: Any) -> list[tuple[Any, Any]]:
    return list(zip(held, saved, strict=False)) if isinstance(held, list | tuple) and isinstance(saved, list | tuple) else []


def _plain(node: Any, path: Path, where: str) -> Any:
    """A state with plain dicts in the place of ordered ones."""
    nested.check_depth(path, where=where)
    if type(node) in {dict, OrderedDict}:
        return {key: _plain(child, (*path, ("key", key)), where) for key, child in node.items()}
    if type(node) in {list, tuple}:
        return type(node)(_plain(child, (*path, ("index", index)), where) for index, child in enumerate(node))
    return node
