"""From a checkpoint of one framework to a view under the names of the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ckptcore.backend import Wanted
from ckptcore.convert import modules, naming, optimizers
from ckptcore.convert.hyper import Hyper
from ckptcore.convert.modules import Stored, Targets, Task, dotted
from ckptcore.convert.naming import Names
from ckptcore.convert.rules import Rule, looks
from ckptcore.convert.shown import Shown, is_array
from ckptcore.convert.view import View
from ckptcore.errors import CallError, NotFound, StructureMismatch
from ckptcore.match import Elsewhere
from ckptcore.names import Path
from ckptcore.readable import Readable, StoredLeaf

PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"model": ("params", "batch_stats", "model"), "optimizer": ("optimizer", "opt_state")}
)
"""Torch's components, and where their content lies in a program that uses Flax, unless the caller says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How checkpoints of the framework `source` are seen by the other one.

    Data only; make it with `flax_to_torch` or `torch_to_flax`.

    `places` says for each component of torch where in Flax's program its content lies: in a component, or in
    a part of one (`state.params`). Components that are in no place are seen as they are. `only` are patterns of the names
    of leaves that only one side has, below the component of torch that they would belong to.
    """

    source: Literal["jax", "torch"]
    names: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    optimizer: Hyper | Mapping[str, Hyper] | None = None
    places: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PLACES)
    count: int | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Names(self.names)
        if isinstance(self.only, str) or not all(isinstance(pattern, str) and pattern for pattern in self.only):
            raise CallError(f"only={self.only!r}: expected patterns of names, such as ['*.rngs.*']")

    def components(self, name: str) -> tuple[str, ...]:
        """The components of the source that a target's component `name` draws from, as far as they exist."""
        if self.source == "jax":
            places = self.places.get(name, (name,))
            return tuple(dict.fromkeys(place.partition(".")[0] for place in places))
        drawn = [torch for torch, places in self.places.items() if any(place.partition(".")[0] == name for place in places)]
        return tuple(drawn) or (name,)

    def view(
        self,
        source: Readable,
        wanted: Sequence[Wanted],
        *,
        missing: Literal["error", "keep"] = "error",
        extra: Literal["error", "ignore"] = "error",
        elsewhere: Collection[Elsewhere] = (),
    ) -> View:
        """`source` under the names of the target that wants `wanted`; `elsewhere` is what other ranks want of the target.

        What the target `keeps` is not among `wanted`.

        Rules and names of the user's that fit nothing are a problem, too: without them something else would be taken.

        With `missing="keep"` the target may want what the source lacks, with `extra="ignore"` the source may have what
        the target does not want. Otherwise both, and whatever is ambiguous or not understood, raise `StructureMismatch`
        that lists all of it. Only records and the optimizer's counts are read. Raises `NotFound` if the source has none of the
        components, `CallError` if the optimizer's hyper-parameters are needed and were not given.
        """
        task = Task(source=source, rules=self.rules, names=self.names, missing=missing == "keep", extra=extra == "ignore")
        made = list(self._to_torch(task, wanted, elsewhere) if self.source == "jax" else self._to_flax(task, wanted))
        if not task.extra and not elsewhere and made:
            task.problems += task.idle()
        problems = list(dict.fromkeys(task.problems))  # a component that is home to two of torch's is gone through twice
        if problems:
            what = f"{source.title} cannot be converted to what the target is{self.doubt(wanted)}"
            raise StructureMismatch(f"{what}; {len(problems)} problems:", problems)
        shown: dict[str, dict[str, Shown]] = {leaf.component: {} for leaf in wanted if self._converts(leaf.component)}
        for item in made:
            shown[item.leaf.component][item.leaf.name] = item
        hidden = frozenset(name for target in shown for name in self.components(target))
        plain = sorted({leaf.component for leaf in wanted if leaf.component not in shown and looks(leaf.path) is not None})
        framework = "torch" if self.source == "jax" else "jax"
        return View(source=source, framework=framework, shown=shown, hidden=hidden, plain=tuple(plain))

    def keeps(self, leaf: Wanted) -> bool:
        """Whether a leaf of the target is one of those that the source does not have (`only`): it stays as it is."""
        path = leaf.path if self.source == "jax" else self._place(leaf.component, leaf.path)[1]
        return self._converts(leaf.component) and self._is_only(path)

    def doubt(self, wanted: Sequence[Wanted]) -> str:
        """For an error: a question if the target's names look like those of the framework that is converted from."""
        found = {looks(leaf.path) for leaf in wanted} - {None}
        if found != {self.source}:
            return ""
        this, other = ("flax_to_torch", "torch_to_flax") if self.source == "jax" else ("torch_to_flax", "flax_to_torch")
        whose = "Flax" if self.source == "jax" else "torch"
        return f" (convert= is {this}, yet the target's names look like {whose}'s: is {other} meant?)"

    def _is_only(self, path: Path) -> bool:
        return any(naming.capture(pattern, dotted(path)) is not None for pattern in self.only)

    def _converts(self, component: str) -> bool:
        """Whether a component of the target is made of converted ones, not taken as it is."""
        if self.source == "jax":
            return component in self.places
        return any(place.partition(".")[0] == component for places in self.places.values() for place in places)

    def _to_torch(self, task: Task, wanted: Sequence[Wanted], elsewhere: Collection[Elsewhere]) -> Iterator[Shown]:
        targets = {
            component: [(leaf.path, leaf) for leaf in wanted if leaf.component == component]
            for component in dict.fromkeys(leaf.component for leaf in wanted)
            if self._converts(component)
        }
        parameters = _parameters([leaf for component in targets.values() for _, leaf in component])
        for component, leaves in targets.items():
            stored = self._stored(task, component)
            if stored is None:
                continue
            if _is_optimizer(path for path, _ in leaves):
                task.elsewhere = _below(elsewhere, f"{component}.state.")
                yield from optimizers.to_torch(task, stored, leaves, self._hyper(component), parameters)
            else:
                task.elsewhere = _below(elsewhere, f"{component}.")
                yield from modules.to_torch(task, stored, leaves)

    def _to_flax(self, task: Task, wanted: Sequence[Wanted]) -> Iterator[Shown]:
        targets: dict[str, list[tuple[Path, Wanted]]] = {}
        for leaf in wanted:
            torch, path = self._place(leaf.component, leaf.path)
            if torch is not None:
                targets.setdefault(torch, []).append((path, leaf))
            elif self._converts(leaf.component):
                task.lacks(leaf, f"is in none of the places of components={dict(self.places)}")
        source = task.source
        for torch, leaves in targets.items():
            _refuse_doubles(task, [(path, leaf) for path, leaf in leaves if leaf.kind != "empty"])
            if torch not in source.names:
                if task.missing:
                    continue
                raise _not_found(source, leaves[0][1].component, [torch])
            leaves_of_torch = [(leaf.record.path, leaf) for leaf in source.leaves(torch).values()]
            stored = _filled(source, [(path, leaf) for path, leaf in leaves_of_torch if not self._is_only(path)])
            if _is_optimizer(path for path, _ in stored):
                yield from optimizers.to_flax(task, stored, leaves, self.count)
            else:
                yield from modules.to_flax(task, stored, leaves)

    def _stored(self, task: Task, component: str) -> Stored | None:
        """The leaves of Flax that a component of torch is made of; None if there are none, and none are needed."""
        source = task.source
        homes = [name for name in self.components(component) if name in source.names]
        if not homes:
            if task.missing:
                return None
            raise _not_found(source, component, self.components(component))
        found: list[tuple[Path, StoredLeaf]] = []
        for home in homes:
            for leaf in source.leaves(home).values():
                torch, path = self._place(home, leaf.record.path)
                if self._is_only(path):
                    continue
                if torch == component:
                    found.append((path, leaf))
                elif torch is None and _filled(source, [(leaf.record.path, leaf)]):
                    task.unused(leaf, f"is in none of the places of components={dict(self.places)}")
        filled = _filled(source, found)
        _refuse_doubles(task, filled)
        return filled

    def _place(self, component: str, path: Path) -> tuple[str | None, Path]:
        """The component of torch to which a leaf of Flax belongs, and its path there. The longest place counts."""
        for depth in range(len(path), -1, -1):
            place = ".".join([component, *(str(key) for _, key in path[:depth])])
            torch = next((torch for torch, places in self.places.items() if place in places), None)
            if torch is not None:
                return torch, path[depth:]
        return None, path

    def _hyper(self, component: str) -> Hyper:
        given = self.optimizer.get(component) if isinstance(self.optimizer, Mapping) else self.optimizer
        if given is None:
            raise CallError(
                f"{component}: optax keeps no hyper-parameters; give them as flax_to_torch(optimizer=…), with"
                " AdamW(lr=…, weight_decay=…), Adam(…) or SGD(…) of ckptcore.convert"
            )
        return given


def _filled(source: Readable, leaves: Stored) -> Stored:
    """The leaves without those of empty nodes."""
    return [(path, leaf) for path, leaf in leaves if is_array(leaf) or not _is_empty(source.value(leaf))]


def _refuse_doubles(task: Task, leaves: Stored | Targets) -> None:
    """Note leaves of two places that have one name: each could be what a tensor of torch is."""
    first: dict[str, StoredLeaf | Wanted] = {}
    for path, leaf in leaves:
        other = first.setdefault(dotted(path), leaf)
        if other is not leaf:
            task.refuse(leaf, f"{other.name!r} has the same place in torch; say with components= which of them counts")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list | tuple) and not value)


def _is_optimizer(paths: Iterator[Path]) -> bool:
    """Whether leaves with these paths are those of a torch optimizer: it has groups."""
    return any(path[:1] == (("key", "param_groups"),) for path in paths)


def _parameters(wanted: Sequence[Wanted]) -> dict[str, Wanted | None]:
    """The tensors of modules by name; None for a name under which there are different ones."""
    found: dict[str, Wanted | None] = {}
    for leaf in wanted:
        if leaf.kind == "array":
            for name in (dotted(leaf.path), *modules.ties(leaf)):
                other = found.setdefault(name, leaf)
                if other is None or (other.shape, other.dtype) != (leaf.shape, leaf.dtype):
                    found[name] = None
    return found


def _below(elsewhere: Collection[Elsewhere], prefix: str) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix) for name, _ in elsewhere if name.startswith(prefix))


def _not_found(source: Readable, component: str, homes: Sequence[str]) -> NotFound:
    return NotFound(
        f"{source.title} has none of {list(homes)}, of which {component!r} is made; it has {sorted(source.names)};"
        f" say where its content lies with components="
    )
