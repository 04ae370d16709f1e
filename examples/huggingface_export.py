"""Train, and write the weights as Hugging Face names them: `model.safetensors`, or several files with an index.

`python examples/huggingface_export.py /tmp/run /tmp/hf`. Neither the export nor the training needs `transformers`;
`AutoModel.from_pretrained` reads the files, with the model's `config.json` beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import torchckpt

VOCABULARY, WIDTH, LAYERS, STEPS = 64, 16, 2, 30
NAMES = {
    "model.embed_tokens": "embed",
    "model.layers.*.mlp.up_proj": "blocks.*.up",
    "model.layers.*.mlp.down_proj": "blocks.*.down",
    "model.layers.*.post_attention_layernorm": "blocks.*.norm",
    "model.norm": "norm",
    "lm_head": "head",
}
"""From the names in the files to this program's; `*` is one element."""


class Block(nn.Module):
    """A hidden layer beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(…, WIDTH)` → the same."""
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Net(nn.Module):
    """Tokens `(batch,)` → logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the network."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(url: str | Path, *, steps: int = STEPS) -> nn.Module:
    """Train up to `steps`; returns the model."""
    torch.manual_seed(0)
    model, sampler = Net(), torchckpt.Sampler(size=256, batch=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    derived = {"schedule": "step", "rng": "step"}  # the rate is constant; no random numbers are drawn
    with torchckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=torchckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(lambda: state, like=state)
        for step in range(restored.step + 1, steps + 1):
            tokens = torch.from_numpy(sampler.next()) % VOCABULARY
            loss = functional.cross_entropy(model(tokens), (3 * tokens + 1) % VOCABULARY)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, state, metrics={"loss": loss.item()})
    print(f"from step {restored.step} to step {steps}")
    return model


def export(url: str | Path, folder: str | Path) -> list[Path]:
    """The newest checkpoint's weights in bfloat16. Streamed: the model is never in memory as a whole, and no GPU is needed."""
    return torchckpt.open_run(url).export_safetensors(folder, component="model", names=NAMES, dtype="bfloat16")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/huggingface_export.py URL FOLDER")
    train(sys.argv[1])
    print("\n".join(str(file) for file in export(sys.argv[1], sys.argv[2])))
