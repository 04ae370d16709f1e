"""The two directions, as a program asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcore.convert.conversion import PLACES, Conversion
from ckptcore.convert.hyper import Hyper
from ckptcore.convert.rules import Rule
from ckptcore.errors import CallError

Places = Mapping[str, str | Sequence[str]]
"""Torch's components, and where their content lies in a program that uses Flax."""


def flax_to_torch(
    *,
    names: Mapping[str, str] | None = None,
    rules: Sequence[Rule] = (),
    optimizer: Hyper | Mapping[str, Hyper] | None = None,
    components: Places | None = None,
    only: str | Sequence[str] = (),
) -> Conversion:
    """Restore checkpoints of a program that uses Flax and optax into torch's modules and optimizers.

    `names` translates prefixes of modules: `{"Dense_0": "fc1", "blocks_*.attn": "blocks.*.attn"}`, where `*` is text without
    a dot. `rules` go before `FLAX_TORCH`. `optimizer` gives the hyper-parameters that optax does not keep (per component
    of torch if there are several). `components` says where the content of torch's components lies in the
    checkpoint, if not in `params`, `batch_stats` and `optimizer`: `{"model": ("state.params", "state.batch_stats"),
    "optimizer": ("state.opt_state", "state.step")}` for a `TrainState` saved as `state`. `only` are patterns of names, as in
    rules, of what only one framework has, whichever it is: `["*.rngs.*"]` for the random state in NNX's Dropout. Such leaves
    of the checkpoint are left out, and those of the target stay as they are; everything else has to come out even.
    """
    return Conversion(
        source="jax",
        names=dict(names or {}),
        rules=tuple(rules),
        optimizer=optimizer,
        places=_places(components),
        only=_patterns(only),
    )


def torch_to_flax(
    *,
    names: Mapping[str, str] | None = None,
    rules: Sequence[Rule] = (),
    components: Places | None = None,
    only: str | Sequence[str] = (),
    count: int | None = None,
) -> Conversion:
    """Restore checkpoints of torch's modules and optimizers into a program that uses Flax and optax.

    The arguments are those of `flax_to_torch`, so that the same ones serve both ways. `count` is the number of steps made, for
    a target that counts them when torch's optimizer, `SGD`, did not.
    """
    return Conversion(
        source="torch",
        names=dict(names or {}),
        rules=tuple(rules),
        places=_places(components),
        count=count,
        only=_patterns(only),
    )


def _patterns(only: str | Sequence[str]) -> tuple[str, ...]:
    return (only,) if isinstance(only, str) else tuple(only)


def _places(components: Places | None) -> Mapping[str, tuple[str, ...]]:
    given = {name: (places,) if isinstance(places, str) else tuple(places) for name, places in (components or {}).items()}
    places = {**PLACES, **given}
    twice = [place for place in (p for some in given.values() for p in some) if sum(place in some for some in given.values()) > 1]
    if twice:
        raise CallError(f"components: {twice[0]!r} is a place of several components")
    return {name: tuple(place for place in some if name in given or place not in _all(given)) for name, some in places.items()}


def _all(places: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {place for some in places.values() for place in some}
