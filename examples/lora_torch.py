"""Train a small adapter beside frozen weights: the frozen ones are written once, and every later checkpoint refers to them.

Run it twice: `python examples/lora_torch.py /tmp/lora`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import torchckpt

WIDTH, RANK, STEPS = 64, 4, 40


class Adapter(nn.Module):
    """A correction of low rank for each layer of a frozen network."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.down = nn.ParameterList([nn.Parameter(torch.randn(RANK, WIDTH) / WIDTH) for _ in range(layers)])
        self.up = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH, RANK)) for _ in range(layers)])

    def forward(self, base: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        """`(batch, WIDTH)` → the same."""
        for layer, down, up in zip(base, self.down, self.up, strict=True):
            x = torch.tanh(layer(x) + x @ down.T @ up.T)
        return x


def pretrained() -> nn.Sequential:
    """Stands for weights that come from elsewhere."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)]).requires_grad_(requires_grad=False)


def main(url: str | Path, *, steps: int = STEPS) -> float:
    """Train up to `steps`, and say what was done; returns the last loss."""
    base, adapter = pretrained(), Adapter(layers=3)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-2)
    sampler = torchckpt.Sampler(size=1024, batch=32)
    inputs = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(1))
    state = {"model": adapter, "optimizer": optimizer, "data": sampler, "rng": torchckpt.rng_state()}
    loss = torch.tensor(torch.nan)
    with torchckpt.Checkpointer(url, interval=10, derived={"schedule": "step"}, keep=torchckpt.Keep(last=2)) as ckpt:
        whole = {**state, "base": base}
        restored = ckpt.restore_or_init(lambda: whole, like=whole)
        base_is_stored = restored.generation is not None
        step = restored.step
        for step in range(restored.step + 1, steps + 1):
            x = inputs[sampler.next()]
            loss = (adapter(base, x) - x.roll(1, dims=1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ckpt.should_save(step) or step == steps:
                if base_is_stored:
                    ckpt.save(step, state, unchanged=["base"])
                else:
                    ckpt.save(step, whole).result()
                    base_is_stored = True
    if step == restored.step:
        print(f"nothing left to do: the run is at step {step}")
    else:
        print(f"steps {restored.step + 1} to {step}, loss {loss:.4f}")
    return loss.item()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/lora_torch.py URL")
    main(sys.argv[1])
