"""Which parameter of a Flax module is which of a torch module, and how its axes are arranged: data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckptcore.convert import axes, naming
from ckptcore.errors import CallError
from ckptcore.names import Path


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of parameter. `Rule(flax="*.kernel", torch="*.weight", axes="i o -> o i")`.

    Attributes:
      flax: the name in Flax. A leading `*.` stands for the module's path, which `names` translates; any other `*`
        for text without a dot, the same on both sides. Several names: their arrays, each arranged by `axes`, lie
        one after another along the first axis of torch's (`in_proj_weight`). No name: Flax has no such array;
        zeros are made for torch, and torch's is left out of what is made for Flax (`num_batches_tracked`).
      torch: the name in torch.
      axes: from Flax's axes to torch's (`ckptcore.convert.axes`). The number of axes chooses among rules of one name.
      sizes: of axes that the array's shape does not tell: `axes="(h w c) o -> o (c h w)"`, `sizes={"h": 7, "w": 7}`
        for the first layer after a convolution's output is flattened.

    """

    flax: str | tuple[str, ...]
    torch: str
    axes: str
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parsed = axes.parse(self.axes)
        if any(naming.stars(name) != naming.stars(self.torch) for name in self.parts):
            raise CallError(f"{self}: the names need the same stars on both sides")
        unknown = set(self.sizes) - {name for axis in parsed.left for name in axis}
        if unknown or any(size < 1 for size in self.sizes.values()):
            raise CallError(f"{self}: `sizes` gives positive sizes of axes in `axes`")

    @property
    def parts(self) -> tuple[str, ...]:
        """Flax's names."""
        return (self.flax,) if isinstance(self.flax, str) else self.flax

    def __str__(self) -> str:
        return f"Rule(flax={self.flax!r}, torch={self.torch!r}, axes={self.axes!r})"


def _rules(flax: str, torch: str, *patterns: str) -> tuple[Rule, ...]:
    return tuple(Rule(flax=flax, torch=torch, axes=pattern) for pattern in patterns)


def _projections(*names: tuple[str, str]) -> tuple[Rule, ...]:
    """Flax's attention projections, `(d, heads, k)`, as linear layers called as in torch code: q_proj, k_proj, ….

    `out`, `(heads, k, d)`, is called `out_proj` in `nn.MultiheadAttention` too.
    """
    return tuple(
        rule
        for flax, torch in names
        for rule in (
            *_rules(f"*.{flax}.kernel", f"*.{torch}.weight", "h k d -> d (h k)" if flax == "out" else "d h k -> (h k) d"),
            *_rules(f"*.{flax}.bias", f"*.{torch}.bias", "d -> d" if flax == "out" else "h k -> (h k)"),
        )
    )


def _fused(kind: str) -> tuple[str, ...]:
    return tuple(f"*.{name}.{kind}" for name in ("query", "key", "value"))


FLAX_TORCH: tuple[Rule, ...] = (
    # Dense and Conv of one to three dimensions (also grouped and depthwise), and DenseGeneral into and out of heads.
    *_rules("*.kernel", "*.weight", "i o -> o i", "w i o -> o i w", "h w i o -> o i h w", "d h w i o -> o i d h w"),
    *_rules("*.kernel", "*.weight", "d h k -> (h k) d", "h k d -> d (h k)"),
    *_rules("*.bias", "*.bias", "c -> c", "h k -> (h k)"),
    *_rules("*.embedding", "*.weight", "v d -> v d"),
    # LayerNorm, RMSNorm, GroupNorm and BatchNorm.
    *_rules("*.scale", "*.weight", "c -> c"),
    *_rules("*.mean", "*.running_mean", "c -> c"),
    *_rules("*.var", "*.running_var", "c -> c"),
    Rule(flax=(), torch="*.num_batches_tracked", axes="->"),
    # MultiHeadDotProductAttention and nnx.MultiHeadAttention.
    *_projections(("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")),
    Rule(flax=_fused("kernel"), torch="*.in_proj_weight", axes="d h k -> (h k) d"),
    Rule(flax=_fused("bias"), torch="*.in_proj_bias", axes="h k -> (h k)"),
)
"""The rules that hold without being named. A user's own are tried before them.

`num_batches_tracked` has no counterpart in Flax and begins at 0: torch looks at it only in a BatchNorm with `momentum=None`.
"""

ASK: Mapping[str, str] = {
    "ConvTranspose_*": "a transposed convolution's kernel does not say whether it is reversed: add"
    " rules=conv_transpose(flax module, torch module, transpose_kernel=…)"
}
"""Flax modules, by the last part of their path, to which the rules above are not applied, and what to do instead."""

_OF_ONE: Mapping[str, Literal["jax", "torch"]] = {
    **dict.fromkeys(("kernel", "embedding"), "jax"),
    **dict.fromkeys(("weight", "running_mean", "in_proj_weight"), "torch"),
}
"""Names of parameters by which modules of one framework are told from the other's."""


def looks(path: Path) -> Literal["jax", "torch"] | None:
    """Whose parameter a leaf with this path is, by its name; None if that does not tell."""
    return _OF_ONE.get(str(path[-1][1]).rpartition(".")[2]) if path else None


def conv_transpose(flax: str, torch: str, *, dimensions: int = 2, transpose_kernel: bool = False) -> tuple[Rule, ...]:
    """The rules of one transposed convolution, by its full names, in which `*` stands for text without a dot.

    Flax's kernel is reversed in space, unless the module has `transpose_kernel=True`. Groups are not supported. A transposed
    convolution with as many inputs as outputs looks like a convolution: without these rules it is taken for one,
    unless Flax has called it `ConvTranspose_0` or so.
    """
    if dimensions not in (1, 2, 3):
        raise CallError(f"conv_transpose(dimensions={dimensions!r}): expected 1, 2 or 3")
    space = ["d", "h", "w"][-dimensions:]
    given = " ".join(space)
    turned = given if transpose_kernel else " ".join(f"-{name}" for name in space)
    channels = "o i" if transpose_kernel else "i o"
    return (
        Rule(flax=f"{flax}.kernel", torch=f"{torch}.weight", axes=f"{given} {channels} -> i o {turned}"),
        Rule(flax=f"{flax}.bias", torch=f"{torch}.bias", axes="c -> c"),
    )
