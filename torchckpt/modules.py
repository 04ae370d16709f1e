"""The tensors of a module under its canonical names: those that `torch.distributed.checkpoint.state_dict` gives.

What wraps a module does not show in names: `DistributedDataParallel`, `DataParallel`, `torch.compile`, activation
checkpointing. A wrapper is known by its type, so a child that is really called `module` keeps its name. A module whose
classes and hooks leave `state_dict` as torch has it is not asked for one: its entries are its parameters, persistent
buffers and extra state. Any other module is asked, and what it names has to be registered somewhere in it, so that a
restore can fill it in place. Parameters that FSDP has gathered are sharded again first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Module
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ckptcore.errors import CallError, UnsupportedLeaf
from ckptcore.names import Path, show_path
from torchckpt import objects
from torchckpt.leaves import check
from torchckpt.slots import Leaf, Slot

Names = Mapping[int, str]
"""`id` of a parameter → its canonical name."""

_EXTRA_STATE = "_extra_state"
_FSDP_HOOKS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
# Hooks of these change no entry: they shard again, take a wrapper's name away, and note a version.
_PLAIN_HOOKS = {_FSDP_HOOKS, "torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "torch.nn.utils.spectral_norm"}


@dataclass(frozen=True, kw_only=True)
class ModuleTensor:
    """A parameter or persistent buffer by its canonical name. `tied` are the other names that the module has for it.

    `lowest_counts`: ranks may have other values, and the next forward pass broadcasts those of the lowest one.
    """

    name: str
    tensor: torch.Tensor
    tied: tuple[str, ...]
    lowest_counts: bool


@dataclass(frozen=True, kw_only=True)
class ExtraState:
    """The extra state of a module as an object with state."""

    owner: Module

    def get_state(self) -> Any:
        """What the module wants to be saved beside its tensors."""
        return self.owner.get_extra_state()

    def set_state(self, state: Any) -> None:
        """Give it back."""
        self.owner.set_extra_state(state)


_Entry = tuple[str, torch.Tensor | ExtraState]
"""One entry of a state dict by its canonical name."""


def leaves(module: Module, path: Path, component: str) -> list[Leaf]:
    """What is stored of a module: its tensors, each below `path` under its name, then the extra states.

    A tied tensor is stored under its first name. Raises `UnsupportedLeaf`, naming the leaf, for what could not be restored.
    """
    entries = _entries(module, path, component)
    found = [leaf for tensor in _tensors(module, entries, path, component) for leaf in _tensor_leaves(tensor, path)]
    for name, state in _extra_states(entries, path, component):
        found += objects.leaves(state, _below(path, name), component)
    return found


def extra_slots(module: Module, path: Path, component: str) -> list[Slot]:
    """A slot for each extra state, which is not asked for: only `set_extra_state` is called."""
    entries = _entries(module, path, component)
    return [objects.slot(state, _below(path, name), component) for name, state in _extra_states(entries, path, component)]


def tensors(module: Module, component: str, path: Path = ()) -> list[ModuleTensor]:
    """The parameters and persistent buffers themselves, each once, in the module's order; `component` and `path` are for errors.

    Raises `UnsupportedLeaf`, naming the leaf, for tensors that have no place in the format or hold no data.
    """
    return _tensors(module, _entries(module, path, component), path, component)


def names(module: Module) -> dict[int, str]:
    """The name of every parameter, by its `id`: the first of a tied one. It holds as long as the module keeps its parameters."""
    entries = _entries(module, (), "model")
    registered = [(name, value) for node in _nodes(module) for name, value in _parameters(node)]
    found: dict[int, str] = {}
    # What a module leaves out of its state dict may have an optimizer all the same.
    for name, value in [*entries, *registered]:
        found.setdefault(id(value), name)
    return {id(value): found[id(value)] for _, value in registered}


def shared(modules: Iterable[tuple[Path, Module]], component: str) -> dict[int, list[Path]]:
    """All paths, in order, of every tensor in several modules of one component, by its `id`: they may share tensors."""
    paths: dict[int, list[Path]] = {}
    for path, module in modules:
        for name, value in _entries(module, path, component):
            if isinstance(value, torch.Tensor):
                paths.setdefault(id(value), []).append(_below(path, name))
    return paths


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A module within the root: with what its keys in torch's state dict begin, and with what its canonical names do."""

    module: Module
    key: str
    name: str


def _tensor_leaves(tensor: ModuleTensor, path: Path) -> list[Leaf]:
    first = Leaf(path=_below(path, tensor.name), data=tensor.tensor, lowest_counts=tensor.lowest_counts)
    return [first, *(replace(first, path=_below(path, name), tied_to=first.path) for name in tensor.tied)]


def _tensors(module: Module, entries: Sequence[_Entry], path: Path, component: str) -> list[ModuleTensor]:
    broadcast = _broadcast_buffers(module)
    found: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            check(value, show_path(component, _below(path, name)))
            found.setdefault(id(value), []).append((name, value))
    return [
        ModuleTensor(name=name, tensor=tensor, tied=tuple(other for other, _ in others), lowest_counts=key in broadcast)
        for key, ((name, tensor), *others) in found.items()
    ]


def _entries(module: Module, path: Path, component: str) -> list[_Entry]:
    nodes = _nodes(module)
    for node in nodes:
        if isinstance(node.module, FullyShardedDataParallel):
            raise UnsupportedLeaf(
                f"{show_path(component, path)}: {node.name.removesuffix('.') or 'the module'} is wrapped in "
                "FullyShardedDataParallel, which has no tensor per parameter; use torch.distributed.fsdp.fully_shard"
            )
        _shard_again(node.module)
    entries = [entry for node in nodes for entry in _own_entries(node)]
    if any(_is_customised(node.module) for node in nodes):
        return _asked_entries(module, nodes, entries, path, component)
    return entries


def _nodes(root: Module) -> list[_Node]:
    """All modules within the root, itself included, under each name that they have, in the order of a state dict."""
    nodes: dict[str, _Node] = {}
    for raw, module in Module.named_modules(root, remove_duplicate=False):
        above, _, own = raw.rpartition(".")
        nodes[raw] = _child(nodes[above], own, module) if raw else _Node(module=module, key="", name="")
    return list(nodes.values())


def _child(parent: _Node, own: str, module: Module) -> _Node:
    wrapped = own == _wrapped_child(parent.module)
    unkeyed = wrapped and isinstance(parent.module, ActivationWrapper)
    key = parent.key if unkeyed else f"{parent.key}{own}."
    return _Node(module=module, key=key, name=parent.name if wrapped else f"{parent.name}{own}.")


def _wrapped_child(module: Module) -> str | None:
    """The child that a wrapper wraps; None for a module that is no wrapper."""
    if isinstance(module, DistributedDataParallel | DataParallel):
        return "module"
    if isinstance(module, ActivationWrapper):
        return "_checkpoint_wrapped_module"
    # Its import takes long; a program that has not made it has no compiled module.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return "_orig_mod" if dynamo is not None and isinstance(module, dynamo.OptimizedModule) else None


def _own_entries(node: _Node) -> Iterator[_Entry]:
    """The entries that torch's own `state_dict` gives for one module without its children."""
    transient = node.module._non_persistent_buffers_set  # noqa: SLF001 - torch has no other way to ask
    yield from _parameters(node)
    for name, tensor in _buffers(node):
        if name not in transient:
            yield node.name + name, tensor
    if type(node.module).get_extra_state is not Module.get_extra_state:
        yield node.name + _EXTRA_STATE, ExtraState(owner=node.module)


def _parameters(node: _Node) -> Iterator[tuple[str, torch.Tensor]]:
    # Of the class: a module may have an override, which gives other names or leaves out what is frozen.
    for name, tensor in Module.named_parameters(node.module, recurse=False, remove_duplicate=False):
        yield node.name + name, tensor


def _buffers(node: _Node) -> Iterator[tuple[str, torch.Tensor]]:
    yield from Module.named_buffers(node.module, recurse=False, remove_duplicate=False)


def _is_customised(module: Module) -> bool:
    """Whether a class or a hook may give the module's `state_dict` other entries than those of `_own_entries`."""
    methods = (getattr(module, name, None) for name in ("state_dict", "_save_to_state_dict"))
    if [getattr(method, "__func__", None) for method in methods] != [Module.state_dict, Module._save_to_state_dict]:  # noqa: SLF001
        return True
    hooks = chain(_hooks(module, "_state_dict_hooks"), _hooks(module, "_state_dict_pre_hooks"))
    return any(_origin(hook) not in _PLAIN_HOOKS for hook in hooks)


def _shard_again(module: Module) -> None:
    """As torch's own `state_dict` does; `FSDPModule.reshard` would not, after a forward pass that an exception ended."""
    for hook in _hooks(module, "_state_dict_pre_hooks"):
        if _origin(hook) == _FSDP_HOOKS:
            hook(module, "", keep_vars=True)


def _hooks(module: Module, name: str) -> Sequence[Any]:
    return list(vars(module).get(name, {}).values())


def _origin(hook: Any) -> str | None:
    return getattr(hook, "__module__", None)


def _asked_entries(module: Module, nodes: Sequence[_Node], own: Sequence[_Entry], path: Path, component: str) -> list[_Entry]:
    """The entries of a module that has its own idea of its `state_dict`."""
    prefixes = {node.key: node.name for node in nodes}
    extra = {name: value for name, value in own if isinstance(value, ExtraState)}
    state = _state_dict(module, show_path(component, path))
    registered = {id(tensor) for node in nodes for _, tensor in chain(_parameters(node), _buffers(node))}
    entries: list[_Entry] = []
    for key, value in state.items():
        name = _canonical(key, prefixes)
        if id(value) in registered:
            entries.append((name, value))
        elif name in extra:
            entries.append((name, extra[name]))
        else:
            raise UnsupportedLeaf(
                f"{show_path(component, _below(path, name))}: made by a state_dict hook or override, and neither a parameter nor "
                "a buffer of the module, so a restore could not fill it in place. Register it (register_buffer), move it to "
                "get_extra_state/set_extra_state, or save the tensors as a dict of their own"
            )
    return entries


def _state_dict(module: Module, where: str) -> Mapping[str, Any]:
    try:
        return module.state_dict(keep_vars=True)
    except TypeError as error:
        raise CallError(
            f"{where}: {type(module).__qualname__}.state_dict(keep_vars=True) failed: {error}. "
            "An override has to take what torch passes: state_dict(self, *args, **kwargs)"
        ) from error


def _canonical(key: str, prefixes: Mapping[str, str]) -> str:
    """A state dict's key with the wrappers' parts taken out. A hook may have given it an end that is no module's."""
    cuts = [position + 1 for position, character in enumerate(key) if character == "."]
    longest = next((cut for cut in reversed(cuts) if key[:cut] in prefixes), 0)
    return prefixes[key[:longest]] + key[longest:]


def _extra_states(entries: Sequence[_Entry], path: Path, component: str) -> Iterator[tuple[str, ExtraState]]:
    for name, value in entries:
        if not isinstance(value, ExtraState):
            continue
        if type(value.owner).set_extra_state is Module.set_extra_state:
            where, kind = show_path(component, _below(path, name)), type(value.owner).__qualname__
            raise UnsupportedLeaf(f"{where}: {kind} has get_extra_state without set_extra_state, so it could not be restored")
        yield name, value


def _broadcast_buffers(module: Module) -> set[int]:
    """The `id`s of the buffers that DDP broadcasts from its lowest rank before each forward pass."""
    wrappers = (node for node in Module.modules(module) if isinstance(node, DistributedDataParallel) and node.broadcast_buffers)
    return {
        id(buffer)
        for wrapper in wrappers
        for name, buffer in wrapper.module.named_buffers()
        if name not in wrapper.parameters_to_ignore
    }


def _below(path: Path, name: str) -> Path:
    return (*path, ("key", name))
