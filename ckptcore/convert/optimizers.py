"""The state of optimizers: optax's as torch's and the other way round.

The state of optax's `adam`, `adamw` and `sgd` (also with momentum, Nesterov's too) and that of torch's `Adam`, `AdamW` and
`SGD` are the same numbers: the moments are those of the parameters, arranged as they are, and the count of steps is one for all
in optax, one per parameter in torch. Schedules and clipping hold no more than that count. What is not understood is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ckptcore import dtypes
from ckptcore.backend import Wanted
from ckptcore.convert import optax_state, shown
from ckptcore.convert.hyper import SGD, Hyper
from ckptcore.convert.modules import Stored, Targets, Task, check_dtypes
from ckptcore.convert.optax_state import OptaxState
from ckptcore.convert.pairing import Pair, Pairing, hint
from ckptcore.convert.shown import Shown, dtype_of, is_array, shape_of
from ckptcore.convert.torch_state import COUNT, MOMENT_OF, TorchState
from ckptcore.digests import group_key
from ckptcore.geometry import Box
from ckptcore.names import Path
from ckptcore.readable import Readable, StoredLeaf

_STRANGE = (
    "is not understood: of optax's states those of adam, adamw and sgd, of schedules, and those without content are,"
    " alone or in a chain; one optimizer for all parameters"
)
_EXACT = 1 << 24
"""Above it torch's float32 `step` does not hold every count."""


Parameters = Mapping[str, Wanted | None]
"""What is known of torch's parameters, by name."""


def to_torch(task: Task, stored: Stored, targets: Targets, hyper: Hyper, parameters: Parameters) -> list[Shown]:
    """What an optimizer of torch has per parameter, and its parameter groups."""
    state = optax_state.parse(stored)
    for leaf in state.strange:
        task.refuse(leaf, _STRANGE)
    slots = {str(path[1][1]): leaf for path, leaf in targets if len(path) == 2 and path[0] == ("key", "state")}
    groups = next((leaf for path, leaf in targets if path == (("key", "param_groups"),)), None)
    result: list[Shown] = []
    unused = [] if task.extra else hyper.unused([*slots, *task.elsewhere])
    task.problems.extend(f"{type(hyper).__name__}(groups=…): no parameter is called {pattern!r}" for pattern in unused)
    if groups is not None:
        for group in hyper.param_groups(list(slots)):
            path: Path = (*groups.path, ("key", group_key(group["params"])))
            result.append(shown.value(groups.component, path, group))
    moving = {name: leaf for name, leaf in slots.items() if not isinstance(hyper, SGD) or hyper.of(name)["momentum"]}
    needed = sorted(hyper.moments.values()) if moving else []
    if slots and needed != sorted(state.moments):
        found = f"the checkpoint has {sorted(state.moments)}"
        task.problems.append(f"the {type(hyper).__name__} that was given keeps the moments {needed} of optax, {found}")
        return result
    return result + _torch_moments(task, state, moving, hyper, parameters)


def _torch_moments(
    task: Task,
    state: OptaxState[StoredLeaf],
    slots: Mapping[str, Wanted],
    hyper: Hyper,
    parameters: Parameters,
) -> list[Shown]:
    odd = _odd(state)
    for leaf in odd:
        task.refuse(leaf, "is not what torch keeps: a count of all steps, and per parameter moments that are arrays of its shape")
    if odd:
        return []
    count = 0 if state.count is None else _numbers(task.source, [state.count])[0]
    if state.count is not None and count > _EXACT:
        task.refuse(state.count, f"{count} is more than torch's float32 step can count ({_EXACT})")
    if state.count is not None:
        _check_counters(task, state.counters, count)
    known = {name: leaf for name in slots if (leaf := parameters.get(name)) is not None}
    shapes = {name: known[name].shape if name in known else None for name in slots}
    pairing = task.pair({name: shape_of(leaf) for name, leaf in state.parameters.items()}, shapes)
    result: list[Shown] = []
    for fqn, leaf in slots.items():
        found = pairing.pairs.get(fqn)
        if found is None or not found.flax:
            task.lacks(leaf, pairing.problems.get(fqn, "optax holds nothing for it"), misfit=fqn in pairing.misfits)
            continue
        result.extend(_moments(task, state, leaf, found, hyper, parameter=known.get(fqn)))
        if state.count is not None:
            result.append(shown.constant(leaf.component, (*leaf.path, ("key", COUNT)), "float32", (), count))
    used = pairing.used | pairing.could_be(set(task.elsewhere))
    for name, leaf in state.parameters.items():
        if name not in used:
            task.unused(leaf, f"nothing takes it; {hint(name, pairing)}")
    return result


def _moments(
    task: Task, state: OptaxState[StoredLeaf], leaf: Wanted, found: Pair, hyper: Hyper, *, parameter: Wanted | None
) -> Iterator[Shown]:
    """The moments of one parameter. Adam's step needs them in its dtype, and so does SGD's if it is fused."""
    strict = not isinstance(hyper, SGD) or hyper.of(found.torch)["fused"]
    dtype = parameter.dtype if strict and parameter is not None else None
    for key, moment in hyper.moments.items():
        parts = [state.moments[moment][part] for part in found.flax]
        check_dtypes(task, parts)
        made = shown.to_torch(leaf.component, (*leaf.path, ("key", key)), found, state.moments[moment])
        if dtype not in (None, dtype_of(made.leaf)):
            why = f"is {dtype_of(made.leaf)}, and {found.torch!r}, whose {key!r} it becomes, {dtype}"
            task.refuse(parts[0], f"{why}: torch's step fails on that; save moments that have their parameter's dtype")
        yield made


def _check_counters(task: Task, counters: Sequence[StoredLeaf], count: int) -> None:
    """Note counts, of a schedule or of a train state, that are not what the moments count: torch keeps one."""
    for leaf, number in zip(counters, _numbers(task.source, counters), strict=True):
        if number != count:
            task.unused(leaf, f"counts {number} steps, the moments' count is {count}, and torch keeps only that")


def _odd(state: OptaxState[StoredLeaf]) -> list[StoredLeaf]:
    """Moments that have not their parameter's shape, as NovoGrad's, and counts that are not one number."""
    counts = [*state.counters, *([] if state.count is None else [state.count])]
    odd = [leaf for leaf in counts if is_array(leaf) and shape_of(leaf)]
    for name, first in state.parameters.items():
        moments = [leaves[name] for leaves in state.moments.values()]
        odd += [leaf for leaf in moments if not is_array(leaf) or not is_array(first) or shape_of(leaf) != shape_of(first)]
    return odd


def to_flax(task: Task, stored: Stored, targets: Targets, count: int | None) -> list[Shown]:
    """What a state of optax has. `count`: the number of steps, which torch's SGD does not keep."""
    result = [shown.value(leaf.component, leaf.path, leaf.value) for _, leaf in targets if leaf.kind == "empty"]
    wanted = optax_state.parse((path, leaf) for path, leaf in targets if leaf.kind != "empty")
    state = TorchState.of(stored, task.source)
    for leaf in wanted.strange:
        task.refuse(leaf, _STRANGE)
    for leaf in state.strange:
        task.refuse(leaf, "is not understood: of torch's optimizers Adam, AdamW (without amsgrad) and SGD are")
    task.problems.extend(state.misfits(wanted.moments))
    steps = _steps(task, state, count)
    counters = [leaf for leaf in (wanted.count, *wanted.counters) if leaf is not None]
    if counters and steps is None:
        for leaf in counters:
            task.lacks(leaf, "torch's SGD keeps no count of steps: give torch_to_flax(count=…)")
    elif steps is not None:
        result.extend(_counted(task, leaf, steps) for leaf in counters)
    return result + _optax_moments(task, state, wanted)


def _optax_moments(task: Task, state: TorchState, wanted: OptaxState[Wanted]) -> list[Shown]:
    flax = {name: leaf.shape for name, leaf in wanted.parameters.items() if leaf.shape is not None}
    pairing = task.pair(flax, state.shapes)
    parts = {part: found for found in pairing.pairs.values() for part in found.flax}
    result: list[Shown] = []
    for moment, leaves in wanted.moments.items():
        for name, leaf in leaves.items():
            if name not in parts:
                why = f"torch's optimizer has no such parameter; {hint(name, pairing)}"
                task.lacks(leaf, why, misfit=pairing.is_misfit(name))
                continue
            tensor = state.parameters[parts[name].torch].get(MOMENT_OF[moment])
            if tensor is None:  # of a parameter that never had a gradient, or before the first step
                result.append(shown.constant(leaf.component, leaf.path, leaf.dtype or "float32", leaf.shape or ()))
            else:
                result.append(shown.to_flax(leaf.component, leaf.path, parts[name], name, tensor))
    _check_taken(task, state, wanted, pairing)
    return result


def _check_taken(task: Task, state: TorchState, wanted: OptaxState[Wanted], pairing: Pairing) -> None:
    """Note the moments that nothing takes."""
    taken = {MOMENT_OF[moment] for moment in wanted.moments}
    for fqn, keys in state.parameters.items():
        for key, leaf in keys.items():
            if key != COUNT and key not in taken:
                task.unused(leaf, "nothing takes it: the target has no such moments")
            elif key != COUNT and fqn not in pairing.pairs:
                task.unused(leaf, pairing.problems[fqn])


def _steps(task: Task, state: TorchState, count: int | None) -> int | None:
    """The number of steps that all parameters have made; None if torch does not say."""
    if not state.counts:
        return count
    found = dict(zip(state.parameters, (0 for _ in state.parameters), strict=True))
    counted = [fqn for fqn in state.parameters if COUNT in state.parameters[fqn]]
    found.update(zip(counted, _numbers(task.source, [state.parameters[fqn][COUNT] for fqn in counted]), strict=True))
    if len(set(found.values())) > 1:
        shown_steps = ", ".join(f"{fqn!r}: {steps}" for fqn, steps in found.items())
        task.problems.append(f"optax counts one number of steps for all parameters, the checkpoint has several: {shown_steps}")
    return next(iter(found.values()), 0)


def _counted(task: Task, leaf: Wanted, steps: int) -> Shown:
    """A count of the target, in its dtype, or as a Python number."""
    if leaf.kind != "array":
        return shown.value(leaf.component, leaf.path, steps)
    dtype = leaf.dtype or "int32"
    kind = dtypes.numpy_dtype(dtype)
    if kind.kind not in "iu" or steps > int(np.iinfo(kind).max):
        task.refuse(leaf, f"an array of {dtype} does not hold the count {steps}")
        return shown.constant(leaf.component, leaf.path, dtype, leaf.shape or ())
    return shown.constant(leaf.component, leaf.path, dtype, leaf.shape or (), steps)


def _numbers(source: Readable, leaves: Sequence[StoredLeaf]) -> list[int]:
    """The whole numbers that 0-d arrays or values hold."""
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    read: Any = iter(source.read([(leaf, [Box((), ())]) for leaf in arrays]))
    return [int(next(read)[0]) if is_array(leaf) else int(source.value(leaf)) for leaf in leaves]
