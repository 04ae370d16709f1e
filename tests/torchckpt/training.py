"""A training loop with everything that a resumed one has to find as it was: for jobs that are compared line by line.

Each step prints the sample ids, the loss, the learning rates, the scale, and draws from each random generator. What
a training begins with depends on `salt`, so a resumed one owes what it shows to the checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from tests.torchckpt import models
from torchckpt import PerRank, Sampler

SAMPLES, BATCH, LENGTH = 48, 2, 5


class Samples(Dataset[torch.Tensor]):
    """Rows of tokens that begin with the sample's own id."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = torch.arange(index, index + LENGTH) ** 2 % models.VOCABULARY
        return torch.cat([torch.tensor([index]), tokens])


class Batches:
    """Epochs of batches from a loader with workers. Its state is the loader's, and the epoch."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.epoch = 0
        self.sampler = StatefulDistributedSampler(Samples(), num_replicas=ranks, rank=rank, shuffle=True)
        # A generator of its own: a loader draws the seed of its workers when it starts, also when it starts again.
        self.loader = StatefulDataLoader(
            Samples(), BATCH, sampler=self.sampler, num_workers=2, generator=torch.Generator().manual_seed(0)
        )

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.sampler.set_epoch(self.epoch)
            yield from self.loader
            self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was given last."""
        return {"epoch": self.epoch, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after that batch."""
        self.epoch = state["epoch"]
        self.loader.load_state_dict(state["loader"])


class Training:
    """A model, and everything else that changes as it is trained. `data` gives rows of tokens, `cursor` is its component."""

    def __init__(
        self, wrap: Callable[[models.Tiny], torch.nn.Module], data: Iterator[torch.Tensor], cursor: Any, rng: Any, *, salt: int
    ) -> None:
        rank = dist.get_rank()
        torch.manual_seed(salt)
        self.model = wrap(models.Tiny())
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(100 * salt + rank)
        self.optimizer = models.adamw(self.model, lr=0.01 * (1 + salt))
        self.scaler = GradScaler("cpu", init_scale=2.0 ** (8 + salt), growth_interval=2)
        warm = lr_scheduler.LinearLR(self.optimizer, start_factor=0.1, total_iters=3)
        cool = lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)
        self.schedule = lr_scheduler.SequentialLR(self.optimizer, [warm, cool], milestones=[3])
        self.data, self.cursor, self.rng = data, cursor, rng

    def components(self) -> dict[str, Any]:
        """Everything that is saved."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loss_scale": self.scaler,
            "rng": self.rng,
            "data": self.cursor,
        }

    def step(self, step: int) -> None:
        """One update, with its line. At step 3 the gradients overflow."""
        rows = next(self.data)
        logits = self.model(rows[:, 1:])
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 2:].flatten())
        self.scaler.scale(loss * (float("inf") if step == 3 else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        draws = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002 -- the global generators are tested
        shown = " ".join(number.hex() for number in [loss.item(), *rates, self.scaler.get_scale(), *draws])
        print(f"step {step}: ids {rows[:, 0].tolist()} {shown} {self.digest()}", flush=True)  # noqa: T201 -- compared by the test

    def digest(self) -> str:
        """Of all that this rank holds of the parameters, the buffers and the optimizer's state."""
        state = {(name, key): tensor for name, key, tensor in models.tensors_of(self.model, self.optimizer)}
        return models.digest(*(state[key] for key in sorted(state)), *self.model.buffers())


def fed_by_loader(wrap: Callable[[models.Tiny], torch.nn.Module], rng: Any, *, salt: int) -> Training:
    """A training whose cursor is that of each rank's own loader."""
    batches = Batches(dist.get_rank(), dist.get_world_size())
    return Training(wrap, iter(batches), PerRank(batches), rng, salt=salt)


def fed_by_sampler(wrap: Callable[[models.Tiny], torch.nn.Module], rng: Any, *, salt: int) -> Training:
    """A training whose cursor is one for all ranks. Workers read ahead of it."""
    sampler = Sampler(SAMPLES, BATCH * dist.get_world_size())
    loader = DataLoader(Samples(), batch_sampler=sampler, num_workers=2)
    return Training(wrap, sampler.over(loader), sampler, rng, salt=salt)
