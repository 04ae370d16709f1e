"""A small transformer in Flax. It goes on from the newest checkpoint, written by this program or by `transformer_torch.py`.

`python -m examples.transformer_jax /tmp/run 40`, then `python -m examples.transformer_torch /tmp/run 80`, then this one again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import jaxckpt
from ckptcore import convert
from examples.transformer_task import (
    B1,
    B2,
    BATCH,
    EPS,
    HEADS,
    LAYERS,
    LENGTH,
    LR,
    NAMES,
    NORM_EPS,
    SAMPLES,
    VOCABULARY,
    WEIGHT_DECAY,
    WIDTH,
    report,
    sequences,
)

FROM_TORCH = convert.torch_to_flax(names=NAMES)


class Block(nn.Module):
    """Attention and a hidden layer, each beside a residual path."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`(batch, length, WIDTH)` → the same."""
        kinds = {"dtype": self.dtype, "param_dtype": self.dtype}
        y = nn.LayerNorm(epsilon=NORM_EPS, name="norm1", **kinds)(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, use_bias=False, name="attention", **kinds)(y, mask=mask)
        y = nn.LayerNorm(epsilon=NORM_EPS, name="norm2", **kinds)(x)
        return x + nn.Dense(WIDTH, name="down", **kinds)(nn.gelu(nn.Dense(4 * WIDTH, name="up", **kinds)(y)))


class Transformer(nn.Module):
    """Tokens `(batch, LENGTH)` → logits `(batch, LENGTH, VOCABULARY)`."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Apply the network."""
        kinds = {"dtype": self.dtype, "param_dtype": self.dtype}
        x = nn.Embed(VOCABULARY, WIDTH, name="embed", **kinds)(tokens)
        x = x + nn.Embed(LENGTH, WIDTH, name="position", **kinds)(jnp.arange(LENGTH))
        mask = nn.make_causal_mask(tokens)
        for layer in range(LAYERS):
            x = Block(self.dtype, name=f"blocks_{layer}")(x, mask)
        return nn.Dense(VOCABULARY, name="head", **kinds)(nn.LayerNorm(epsilon=NORM_EPS, name="norm", **kinds)(x))


def main(url: str | Path, steps: int, *, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Train up to `steps`, and say what was done; returns the parameters."""
    model = Transformer(dtype)
    tx = optax.adamw(LR, b1=B1, b2=B2, eps=EPS, weight_decay=WEIGHT_DECAY)
    sampler = jaxckpt.Sampler(SAMPLES, BATCH)

    def fresh() -> dict[str, Any]:
        params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
        return {"params": params, "optimizer": tx.init(params)}

    @jax.jit
    def update(params: Any, optimizer: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = jnp.asarray(model.apply({"params": params}, tokens[:, :-1]))
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, optimizer = tx.update(gradients, optimizer, params)
        return optax.apply_updates(params, updates), optimizer, loss

    derived = {"schedule": "step", "rng": "step"}
    loss = jnp.nan
    with jaxckpt.Checkpointer(url, interval=20, derived=derived) as ckpt:
        restored = ckpt.restore_or_init(
            lambda: {**fresh(), "data": sampler},
            like={**jax.eval_shape(fresh), "data": sampler},
            accept_guarantee="coverage",  # what another framework can keep
            convert=FROM_TORCH,
        )
        params, optimizer = restored.components["params"], restored.components["optimizer"]
        step = restored.step
        for step in range(restored.step + 1, steps + 1):
            params, optimizer, loss = update(params, optimizer, sequences(sampler.next()))
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {"params": params, "optimizer": optimizer, "data": sampler}, metrics={"loss": float(loss)})
    print(report(restored.step, step, float(loss)))
    return params


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.transformer_jax URL STEPS")
    main(sys.argv[1], int(sys.argv[2]))
