"""The parameters and buffers of modules, Flax's as torch's and the other way round: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ckptcore.backend import Wanted
from ckptcore.convert import shown
from ckptcore.convert.pairing import Pairing, hint, pair
from ckptcore.convert.rules import Rule
from ckptcore.convert.shown import Shown, dtype_of, is_array, shape_of
from ckptcore.names import Path, show_path
from ckptcore.readable import Readable, StoredLeaf

Stored = Sequence[tuple[Path, StoredLeaf]]
"""Leaves of a checkpoint, those of empty nodes left out, and their paths in what is converted."""
Targets = Sequence[tuple[Path, Wanted]]
"""Leaves of a target, and their paths in what is converted."""


@dataclass(kw_only=True)
class Task:
    """One conversion of `source`: how to pair names, what may be missing, and what was found to be wrong so far.

    `elsewhere` are names of torch parameters that other ranks restore.
    """

    source: Readable
    rules: Sequence[Rule]
    names: Mapping[str, str]
    missing: bool = False
    extra: bool = False
    elsewhere: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)
    applied: list[Rule | str] = field(default_factory=list)

    def pair(self, flax: Mapping[str, shown.Shape], torch: Mapping[str, shown.Shape | None]) -> Pairing:
        """See `pairing.pair`."""
        found = pair(flax, torch, rules=self.rules, names=self.names)
        self.applied += found.applied
        return found

    def idle(self) -> list[str]:
        """The user's rules and prefixes that fit nothing: most likely a mistake, which the standard rules would hide."""
        rules = [rule for rule in self.rules if not any(rule is used for used in self.applied)]
        prefixes = [prefix for prefix in self.names if prefix not in self.applied]
        said = "a leading '*.' stands for the module's path, another '*' for text without a dot"
        return [f"{rule}: fits nothing ({said}); remove it, or give the names as they are" for rule in rules] + [
            f"names {prefix!r}: no module of Flax is called so; remove it, or give the name as it is" for prefix in prefixes
        ]

    def lacks(self, leaf: Wanted, why: str, *, misfit: bool = False) -> None:
        """Note that there is nothing for a leaf of the target, or a `misfit`, which may not be passed over."""
        if misfit or not self.missing:
            self.problems.append(f"{show_path(leaf.component, leaf.path)}: {why}")

    def unused(self, leaf: StoredLeaf, why: str) -> None:
        """Note that nothing takes a leaf of the checkpoint."""
        if not self.extra:
            self.problems.append(f"{show_path(leaf.component, leaf.record.path)} in the checkpoint: {why}")

    def refuse(self, leaf: StoredLeaf | Wanted, why: str) -> None:
        """Note that a leaf cannot be converted, whatever may be missing or left out."""
        path = leaf.path if isinstance(leaf, Wanted) else leaf.record.path
        self.problems.append(f"{show_path(leaf.component, path)}: {why}")


def dotted(path: Path) -> str:
    """A path's name below its component."""
    return ".".join(str(key) for _, key in path)


def to_torch(task: Task, stored: Stored, targets: Targets) -> list[Shown]:
    """Torch's tensors, from a module of Flax."""
    arrays = {dotted(path): leaf for path, leaf in stored if is_array(leaf)}
    wanted = {dotted(path): leaf for path, leaf in targets}
    shapes = {name: leaf.shape for leaf_name, leaf in wanted.items() for name in (leaf_name, *ties(leaf))}
    pairing = task.pair({name: shape_of(leaf) for name, leaf in arrays.items()}, shapes)
    result: list[Shown] = []
    for fqn, leaf in wanted.items():
        made = [_tensor(task, name, leaf, pairing, arrays) for name in (fqn, *ties(leaf)) if name in pairing.pairs]
        result.extend(made)
        if leaf.kind != "array":
            if not leaf.optional:
                task.lacks(leaf, _no_tensor(leaf.path))
        elif not made and not leaf.optional:
            task.lacks(leaf, pairing.problems[fqn], misfit=fqn in pairing.misfits)
    used = pairing.used | pairing.could_be(set(task.elsewhere))
    for path, leaf in stored:
        if not is_array(leaf):
            task.unused(leaf, "is a value, and torch's modules have tensors only")
        elif dotted(path) not in used:
            task.unused(leaf, f"nothing takes it; {hint(dotted(path), pairing)}")
    return result


def to_flax(task: Task, stored: Stored, targets: Targets) -> list[Shown]:
    """Flax's arrays, from a module of torch."""
    arrays = {dotted(path): leaf for path, leaf in stored if is_array(leaf)}
    wanted = {dotted(path): leaf for path, leaf in targets}
    shapes = {name: leaf.shape for name, leaf in wanted.items() if leaf.kind == "array" and leaf.shape is not None}
    pairing = task.pair(shapes, {name: shape_of(leaf) for name, leaf in arrays.items()})
    parts = {part: found for found in pairing.pairs.values() for part in found.flax}
    result: list[Shown] = []
    for name, leaf in wanted.items():
        if leaf.kind == "empty":
            result.append(shown.value(leaf.component, leaf.path, leaf.value))
        elif name in parts:
            result.append(shown.to_flax(leaf.component, leaf.path, parts[name], name, arrays[parts[name].torch]))
        elif name in shapes:
            task.lacks(leaf, _why_not(name, pairing), misfit=pairing.is_misfit(name))
        elif not leaf.optional:
            task.lacks(leaf, "is not an array of known shape, and torch's modules have tensors only")
    taken = {arrays[name].stored_target for name in pairing.pairs}
    for path, leaf in stored:
        if not is_array(leaf):
            task.unused(leaf, "is a value, and Flax's modules have arrays only")
        elif leaf.stored_target not in taken:
            task.unused(leaf, pairing.problems[dotted(path)])
    return result


def ties(leaf: Wanted) -> tuple[str, ...]:
    """The other names of a torch tensor, below its component."""
    return tuple(name.removeprefix(f"{leaf.component}.") for name in leaf.tied)


def _tensor(task: Task, name: str, leaf: Wanted, pairing: Pairing, arrays: Mapping[str, StoredLeaf]) -> Shown:
    path: Path = leaf.path if name == dotted(leaf.path) else (("key", name),)
    found = pairing.pairs[name]
    if not found.flax:
        return shown.constant(leaf.component, path, leaf.dtype or "int64", leaf.shape or ())
    check_dtypes(task, [arrays[part] for part in found.flax])
    return shown.to_torch(leaf.component, path, found, arrays)


def check_dtypes(task: Task, parts: Sequence[StoredLeaf]) -> None:
    """Note arrays that shall become one though their dtypes differ."""
    kinds = sorted({dtype_of(part) for part in parts})
    if len(kinds) > 1:
        task.refuse(parts[0], f"becomes one tensor with {[part.name for part in parts[1:]]}, and their dtypes differ: {kinds}")


def _no_tensor(path: Path) -> str:
    if ("key", "param_groups") in path:
        return "is an optimizer's inside of a component; make each optimizer a component, whose place components= says"
    return "is not a tensor, and Flax's modules have arrays only"


def _why_not(name: str, pairing: Pairing) -> str:
    """Why an array of Flax is not made: what is wrong with the tensors that it could come from, or that there is none."""
    problems = [f"{found!r}: {pairing.problems[found]}" for found in pairing.names[name] if found in pairing.problems]
    if problems:
        return "; ".join(dict.fromkeys(problems))
    return f"nothing makes it; {hint(name, pairing)}"
