"""The transformer of `transformer_jax.py` in PyTorch. It goes on from the run's newest checkpoint, whichever of the two wrote it.

`python -m examples.transformer_jax /tmp/run 40`, then `python -m examples.transformer_torch /tmp/run 80`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import torchckpt
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

FROM_JAX = convert.flax_to_torch(names=NAMES, optimizer=convert.AdamW(lr=LR, betas=(B1, B2), eps=EPS, weight_decay=WEIGHT_DECAY))


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch, length, WIDTH)` → the same."""
        q, k, v = (project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a hidden layer, each beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=NORM_EPS), nn.LayerNorm(WIDTH, eps=NORM_EPS)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(batch, length, WIDTH)` → the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))  # as Flax


class Transformer(nn.Module):
    """Tokens `(batch, LENGTH)` → logits `(batch, LENGTH, VOCABULARY)`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=NORM_EPS), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the network."""
        x = self.embed(tokens) + self.position(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main(url: str | Path, steps: int, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Train up to `steps`, and say what was done; returns the model."""
    torch.manual_seed(0)
    model = Transformer().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(B1, B2), eps=EPS, weight_decay=WEIGHT_DECAY)
    sampler = torchckpt.Sampler(SAMPLES, BATCH)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    derived = {"schedule": "step", "rng": "step"}
    loss = torch.tensor(torch.nan)
    with torchckpt.Checkpointer(url, interval=20, derived=derived) as ckpt:
        restored = ckpt.restore_or_init(
            lambda: state,
            like=state,
            accept_guarantee="coverage",  # what another framework can keep
            convert=FROM_JAX,
        )
        step = restored.step
        for step in range(restored.step + 1, steps + 1):
            tokens = torch.from_numpy(sequences(sampler.next())).long()
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, state, metrics={"loss": loss.item()})
    print(report(restored.step, step, loss.item()))
    return model


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.transformer_torch URL STEPS")
    main(sys.argv[1], int(sys.argv[2]))
