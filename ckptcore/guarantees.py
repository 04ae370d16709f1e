"""The resume contract: what a save can promise and a restore can keep (spec: guarantees). Pure.

| level | promise | needs, beside the step |
| --- | --- | --- |
| `exact` | on the same topology, bit-identical to a run that never stopped | all five |
| `coverage` | every sample is used once; numerics may differ | parameters, optimizer, schedule, one cursor of all ranks |
| `replay` | at most N samples are repeated or skipped | parameters, optimizer, schedule, a cursor of any kind |
| `weights` | no continuation; never a resume point | parameters |

The five needs are parameters, optimizer, schedule, rng and data (the cursor).
A need is met by a component of that kind, or by declaration (`derived`): by another component
that holds it inside, by `step` when it follows from the step, or, for data, by
`Approximate(samples)`. Levels are ordered; but `exact` with a cursor of each rank's own does
not imply `coverage`, which has to hold on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ckptcore import records
from ckptcore.errors import CallError, GuaranteeError
from ckptcore.records import Level

LEVELS: tuple[Level, ...] = ("weights", "replay", "coverage", "exact")
"""From the weakest to the strongest."""
NEEDS = ("parameters", "optimizer", "schedule", "rng", "data")
STEP = "step"
"""In `derived`: the need follows from the step."""

_CONTINUING = ("parameters", "optimizer", "schedule")

Cursor = Literal["none", "approximate", "rank", "global"]


@dataclass(frozen=True)
class Approximate:
    """A data cursor that is right up to `samples` samples, repeated or skipped."""

    samples: int

    def __post_init__(self) -> None:
        if type(self.samples) is not int or self.samples < 0:
            raise CallError(f"Approximate({self.samples!r}): the bound is a number of samples, 0 or more")


class Described(Protocol):
    """A component as far as its guarantee goes; facts, layouts and manifests all have this."""

    @property
    def kind(self) -> str:
        """One of the known kinds, or any other word."""
        ...

    @property
    def scope(self) -> str:
        """`global`: one value for all ranks; `rank`: each rank has its own."""
        ...


Derived = Mapping[str, str | Approximate]


def strength(level: str) -> int:
    """The place of `level` in the order, 0 for `weights`. Raises `CallError` for an unknown one."""
    if level not in LEVELS:
        raise CallError(f"guarantee {level!r} is not one of {', '.join(LEVELS)}")
    return LEVELS.index(level)


def check_derived(derived: Derived) -> None:
    """Raise `GuaranteeError` for a declaration that no component could ever make right."""
    if not isinstance(derived, Mapping):
        raise GuaranteeError(f"derived={derived!r}: expected a mapping, such as {{'schedule': 'optimizer', 'rng': 'step'}}")
    for need, source in derived.items():
        if need not in NEEDS:
            raise GuaranteeError(f"derived: {need!r} is not a need; the needs are {', '.join(NEEDS)}")
        if isinstance(source, Approximate):
            if need != "data":
                raise GuaranteeError(f"derived: {need!r} cannot be Approximate, only data can")
        elif source == STEP and need == "parameters":
            raise GuaranteeError("derived: parameters never follow from the step")
        elif not isinstance(source, str):
            raise GuaranteeError(f"derived: {need!r} is {source!r}, expected a component's name, 'step' or Approximate(n)")


def missing_for(level: Level, components: Mapping[str, Described], derived: Derived) -> list[str]:
    """What keeps a save from promising `level`, one sentence a need; empty if nothing does.

    A need declared to be in a component that is not there is missing.
    """
    needs = {"weights": NEEDS[:1], "replay": _CONTINUING, "coverage": _CONTINUING, "exact": NEEDS[:4]}[level]
    missing = [_absent(need, derived) for need in needs if not _is_met(need, components, derived)]
    if level == "exact":
        # Manifests and layouts do not say this: it is known when the state is saved.
        found = ((name, getattr(component, "inexact", None)) for name, component in components.items())
        missing += [f"{name}: {reason}" for name, reason in found if reason is not None]
    cursor = _cursor(components, derived)
    if level != "weights" and cursor == "none":
        missing.append(_absent("data", derived))
    elif level == "exact" and cursor == "approximate":
        missing.append("data: the cursor is declared Approximate; save the loader's exact state as `data`")
    elif level == "coverage" and cursor in ("approximate", "rank"):
        missing.append(
            f"data: the cursor is {'declared Approximate' if cursor == 'approximate' else 'one of each rank'}; "
            "save one that is the same on every rank (such as ckptcore.sampler.Sampler) as `data`"
        )
    return missing


def prove(components: Mapping[str, Described], derived: Derived) -> records.Guarantee:
    """The strongest guarantee that `components` and `derived` prove.

    Raises `GuaranteeError` when a declaration is wrong or there are not even parameters.
    """
    check_derived(derived)
    for level in reversed(LEVELS):
        if not missing_for(level, components, derived):
            return _record(level, components, derived)
    raise GuaranteeError("; ".join(["nothing can be promised", *missing_for("weights", components, derived)]))


def resolve(
    components: Mapping[str, Described], derived: Derived, *, guarantee: Level | None = None, require: Level | None = None
) -> records.Guarantee:
    """The guarantee that a save records.

    `guarantee` asks for one: a weaker one than provable is recorded as asked. Without it the
    strongest provable one is taken, unless that is only `weights`: no save stops being a
    resume point unasked. `require` is the least that the caller puts up with.
    Raises `GuaranteeError`, which lists what is missing and how to declare it.
    """
    found = prove(components, derived)
    if guarantee is not None:
        strength(guarantee)
        _refuse(f"guarantee={guarantee!r} cannot be kept", missing_for(guarantee, components, derived))
        found = _record(guarantee, components, derived)
    elif found.level == "weights":
        also = [line for line in missing_for("exact", components, derived) if line.startswith("rng")]
        missing = missing_for("replay", components, derived) + [f"{line} (for exact)" for line in also]
        _refuse("only guarantee='weights' can be kept, which no run resumes from; ask for it, or add what is missing", missing)
    if require is not None and strength(found.level) < strength(require):
        missing = missing_for(require, components, derived) or [f"guarantee={guarantee!r} was asked for"]
        _refuse(f"require={require!r} is not met by {found.level!r}", missing)
    if require == "coverage" and found.level == "exact":
        _refuse("require='coverage' is not met", missing_for("coverage", components, derived))
    return found


def keepable(
    saved: records.Guarantee,
    saved_topology: records.Topology,
    topology: records.Topology,
    components: Mapping[str, Described],
    restored: Iterable[str],
    *,
    remapped: bool = False,
    altered: Sequence[str] = (),
    sourceless: Iterable[str] = (),
) -> tuple[Level, list[str]]:
    """The strongest guarantee that a restore can keep, and why it is not the saved one.

    `components` are those of the manifest, `restored` the names of those that are restored.
    `remapped` says that the caller changed rank-scoped state to fit other ranks; `altered` in which ways leaves
    may come back, or be computed with, other than before, a sentence each. `sourceless` are the rank-scoped components
    that would be restored if it were said whose state each rank takes.
    """
    back = frozenset(restored)
    per_rank = _cursor(components, saved.derived) == "rank"
    before, now = saved_topology.participants, topology.participants
    of_ranks = (
        f"is one of each rank, of {before} rank{'s' * (before != 1)} then and {now} now: remap= says whose state each takes"
    )
    why = dict.fromkeys(sourceless, of_ranks)
    obstacles = {level: _left_out(level, saved, components, back, why) for level in LEVELS}
    obstacles["exact"] += topology_differences(saved_topology, topology)
    obstacles["exact"] += altered
    if remapped:
        obstacles["exact"].append("rank-scoped state was remapped")
    if per_rank:
        obstacles["coverage"].append("the data cursor is one of each rank")
    if per_rank and before != now and not remapped:
        obstacles["replay"].append(f"the data cursors of {before} ranks do not fit {now}")
    reasons: list[str] = []
    for level in reversed(LEVELS[: strength(saved.level) + 1]):
        if not obstacles[level]:
            return level, list(dict.fromkeys(reasons))
        reasons += obstacles[level]
    return "weights", list(dict.fromkeys(reasons))


def accept(
    level: Level, saved: records.Guarantee, accepted: Level | None, *, reasons: Sequence[str] = (), advice: str = ""
) -> Level:
    """Return `level`, what a restore can keep, if it is the saved one or the caller accepts it by name.

    `accepted` is the weakest level that the caller accepts. Raises `GuaranteeError` otherwise, with `reasons`, after `advice`.
    """
    if strength(level) >= strength(saved.level):
        return level
    if accepted is None or strength(accepted) > strength(level):
        _refuse(
            f"{advice}the checkpoint promises {saved.level!r}, this restore can keep {level!r} only; "
            f"pass accept_guarantee={level!r} to go on",
            reasons or ["no reason given"],
        )
    return level


def version_differences(saved: Mapping[str, str], versions: Mapping[str, str], computing: Iterable[str]) -> list[str]:
    """Which libraries of `computing` are not the saved ones, a sentence each."""
    pairs = [(name, saved.get(name), versions.get(name)) for name in sorted(computing)]
    return [f"{name} {then or 'absent'} then, {now or 'absent'} now" for name, then, now in pairs if then != now]


def topology_differences(saved: records.Topology, topology: records.Topology) -> list[str]:
    """Why `topology` is not the saved one, a sentence each."""
    fields = ("framework", "platform", "participants", "devices")
    pairs = [(field, getattr(saved, field), getattr(topology, field)) for field in fields]
    found = [f"topology: {field} {now!r} instead of {then!r}" for field, then, now in pairs if then != now]
    if _meshes(saved) != _meshes(topology):
        found.append(f"topology: {_show(topology)} instead of {_show(saved)} (arrays lie where the target's shardings say)")
    return found


def _left_out(
    level: Level, saved: records.Guarantee, components: Mapping[str, Described], back: frozenset[str], why: Mapping[str, str]
) -> list[str]:
    """The components that `level` needs and that do not come `back`, a sentence each. `why` of those that the caller wanted."""
    if level == "exact":
        needed = {name: components[name].kind for name in components}
    else:
        needs = NEEDS[:1] if level == "weights" else (*_CONTINUING, "data")
        needed = {name: need for need in needs for name in _holders(need, components, saved.derived)}
    lost = [name for name in sorted(needed) if name not in back]
    return [f"component {name!r} ({needed[name]}) {why.get(name, 'is left out')}" for name in lost]


def _holders(need: str, components: Mapping[str, Described], derived: Derived) -> tuple[str, ...]:
    """The components that meet `need`; none when it follows from the step or from nothing at all."""
    declared = derived.get(need)
    if isinstance(declared, str):
        return () if declared == STEP else (declared,)
    return tuple(name for name, component in components.items() if component.kind == need)


def _is_met(need: str, components: Mapping[str, Described], derived: Derived) -> bool:
    return derived.get(need) == STEP or any(name in components for name in _holders(need, components, derived))


def _cursor(components: Mapping[str, Described], derived: Derived) -> Cursor:
    if isinstance(derived.get("data"), Approximate):
        return "approximate"
    if derived.get("data") == STEP:
        return "global"
    scopes = {components[name].scope for name in _holders("data", components, derived) if name in components}
    if not scopes:
        return "none"
    return "global" if scopes == {"global"} else "rank"


def _record(level: Level, components: Mapping[str, Described], derived: Derived) -> records.Guarantee:
    """What is recorded. Declarations about components that this save lacks are left out: they meet nothing."""
    declared = derived.get("data")
    bound = declared.samples if isinstance(declared, Approximate) else 0
    return records.Guarantee(
        level=level,
        derived={
            need: source
            for need, source in sorted(derived.items())
            if isinstance(source, str) and (source == STEP or source in components)
        },
        replay_samples=bound if level == "replay" else None,
    )


def _absent(need: str, derived: Derived) -> str:
    declared = derived.get(need)
    if isinstance(declared, str) and declared != STEP:
        return f"{need}: derived says that it is in component {declared!r}, which this save lacks"
    ways = {
        "parameters": "save them as `params` or `model`, or declare derived={'parameters': '<component>'}",
        "data": "save the loader's state as `data`, or declare derived={'data': 'step'} or {'data': Approximate(samples)}",
    }
    way = ways.get(need, f"save it as `{need}`, or declare derived={{{need!r}: '<component>'}} or {{{need!r}: 'step'}}")
    return f"{need}: no component holds it; {way}"


def _refuse(summary: str, reasons: Sequence[str]) -> None:
    if reasons:
        raise GuaranteeError("\n  - ".join([summary, *reasons]))


def _meshes(topology: records.Topology) -> list[tuple[str, list[str], list[int]]]:
    """The meshes in an order of their own: that in which a job lists them says nothing."""
    return sorted((mesh.devices, list(mesh.axes), list(mesh.shape)) for mesh in topology.meshes)


def _show(topology: records.Topology) -> str:
    """Axes and sizes; meshes that differ in the order of their devices alone show the same, so part of the digest too."""
    shown = (f"mesh {list(mesh.axes)} × {list(mesh.shape)} ({mesh.devices[:15]}…)" for mesh in topology.meshes)
    return "; ".join(shown) or "no mesh"
