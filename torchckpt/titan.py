"""A checkpoint manager for trainers that are written for torchtitan's.

It has the methods, arguments and settings of `torchtitan.components.checkpoint.CheckpointManager` and does what they do,
without torchtitan. What is a checkpoint, from which one a job resumes and which are deleted is told by the run's
ledger, not by the names of folders. Give the trainer `torchckpt.titan.CheckpointManager.Config(…)` as its `checkpoint`.

| component | holds | |
| --- | --- | --- |
| `model`, `optimizer` | the parts that this rank has, under their own names | one name space, whatever the pipeline |
| `lr_scheduler` | the schedulers | the same on every rank |
| `dataloader` | the loader's state | each rank its own |
| `rng` | all random generators; torchtitan leaves them out | each rank its own |
| others, such as `train_state` | the states that the trainer gives | rank 0's copy counts |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ckptcore import nested
from ckptcore.components import PerRank, RankZero, unwrap
from ckptcore.errors import CallError
from ckptcore.formats.foreign import Start
from ckptcore.guarantees import Derived
from ckptcore.keep import Keep
from ckptcore.listing import Generation
from ckptcore.names import RUN
from ckptcore.records import Level
from ckptcore.store import Storage, open_store
from torchckpt import modules, shards
from torchckpt.checkpointer import Checkpointer, open_run
from torchckpt.rng import rng_state
from torchckpt.tree import Merged

MODEL, OPTIMIZER, LR_SCHEDULER, DATALOADER, RNG = "model", "optimizer", "lr_scheduler", "dataloader", "rng"


@dataclass(kw_only=True, slots=True)
class Config:
    """torchtitan's settings of a checkpoint manager; the last five are this one's own.

    `derived`, `storage`: as for `torchckpt.Checkpointer`. `start_from`: a foreign checkpoint of weights that a new
    run starts from, such as `Safetensors`. `accept_guarantee`: the weakest guarantee that a resumed job puts up
    with, such as `"replay"` for one of another size; then `remap` gives the old rank whose loader and random state each
    new rank takes.
    """

    enable: bool = False
    folder: str = "checkpoint"
    interval: int = 500
    initial_load_path: str | None = None
    initial_load_model_only: bool = True
    initial_load_in_hf: bool = False
    initial_load_in_hf_quantized: bool = False
    last_save_model_only: bool = True
    last_save_in_hf: bool = False
    export_dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    keep_latest_k: int = 10
    load_step: int = -1
    exclude_from_loading: list[str] = field(default_factory=list)
    enable_first_step_checkpoint: bool = False
    create_seed_checkpoint: bool = False
    load_only: bool = False
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    derived: Derived | None = None
    storage: Storage | None = None
    start_from: Start | None = None
    accept_guarantee: Level | None = None
    remap: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        problems = {
            "folder is empty": not self.folder.strip(),
            f"interval={self.interval}: at least 1": self.interval < 1,
            f"keep_latest_k={self.keep_latest_k}: 0 (keep all), or at least 2": self.keep_latest_k < 0 or self.keep_latest_k == 1,
            f"async_mode={self.async_mode!r}: unknown": self.async_mode not in ("disabled", "async", "async_with_pinned_mem"),
            f"export_dtype={self.export_dtype!r}: unknown": self.export_dtype not in ("float16", "bfloat16", "float32"),
            "exclude_from_loading has 'model', which is always loaded": MODEL in self.exclude_from_loading,
            "initial_load_in_hf: names differ from model to model; give start_from=Safetensors(path, …)": self.initial_load_in_hf,
            "initial_load_in_hf_quantized: quantized tensors cannot be stored": self.initial_load_in_hf_quantized,
            "last_save_in_hf: export the last checkpoint afterwards": self.last_save_in_hf,
        }
        found = [problem for problem, holds in problems.items() if holds]
        if found:
            raise CallError("checkpoint manager: " + "; ".join(found))

    def build(self, **kwargs: Any) -> CheckpointManager:
        """The manager; `kwargs` are the arguments of `CheckpointManager`."""
        return CheckpointManager(self, **kwargs)


class CheckpointManager:
    """Saves, loads and purges the checkpoints of a torchtitan-style trainer; every rank makes one and calls it alike.

    Attributes:
      config: the settings.
      dataloader: an object with `state_dict` and `load_state_dict`, or None.
      model_parts: the modules of this rank: one, or a pipeline's.
      optimizers: an optimizer, or a container with several as `optimizers`.
      lr_schedulers: an object with `state_dict` and `load_state_dict`.
      states: whatever else is saved, by name; `train_state` sets the trainer's step when it is loaded.
      sd_adapter: not used: it is torchtitan's way to Hugging Face's names.
      base_folder: what a relative `config.folder` lies in.

    """

    Config = Config

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: Sequence[torch.nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any,  # noqa: ARG002 - torchtitan's trainer gives it
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        if not self.enable:
            return
        self.folder = config.folder if "://" in config.folder else os.path.join(base_folder, config.folder)  # noqa: PTH118 - may be a URL
        self.states = states
        self._config, self._parts = config, tuple(model_parts)
        self._fixed: dict[str, Any] = {MODEL: _merged(self._parts), OPTIMIZER: _merged(_optimizers(optimizers)), RNG: rng_state()}
        self._fixed[LR_SCHEDULER] = lr_schedulers
        self._derived: dict[str, Any] = {"schedule": LR_SCHEDULER}
        if dataloader is not None:
            self._fixed[DATALOADER] = PerRank(dataloader)
            self._derived["data"] = DATALOADER
        self._derived.update(config.derived or {})
        self._checkpointer: Checkpointer | None = None

    def load(self, step: int = -1) -> bool:
        """Restore `step`, or with -1 what the run resumes from, into the objects given. Returns whether there was anything.

        A new run starts from `initial_load_path` or `start_from`, if given, or from a seed checkpoint (weights of step 0).
        Raises `NotFound` for a step that is not there, `GuaranteeError` when what is excluded, or another number of
        ranks, breaks the promise of the checkpoint and `accept_guarantee` does not allow for it.
        """
        if not self.enable:
            return False
        if self._config.load_only:
            return self._read(step)
        like = self._wanted()
        accept, remap = self._config.accept_guarantee, self._config.remap
        if step > 0:
            restored = self._opened().restore(like=like, step=step, accept_guarantee=accept, remap=remap)
        else:
            seed = self._seed()
            if step == 0 or seed is not None:
                return self._plant(seed, like)
            self._fork()
            restored = self._opened().restore_or_init(lambda: like, like=like, accept_guarantee=accept, remap=remap)
        self._take_back(restored.components)
        return restored.reason is not None

    def save(self, curr_step: int, last_step: bool = False) -> bool:  # noqa: FBT001, FBT002 - torchtitan's signature
        """Save if `curr_step` is due, or is the last. Returns whether a save was begun.

        The last step is saved as weights alone, in `export_dtype`, unless `last_save_model_only` is off: nothing resumes from it.
        Errors of a save in the background are raised by the next one, by `maybe_wait_for_saving` and by `close`.
        """
        if not self._is_due(curr_step, last_step=last_step):
            return False
        if last_step and self._config.last_save_model_only:
            handle = self._opened().save(curr_step, {MODEL: self._exported()}, guarantee="weights")
        else:
            handle = self._opened().save(curr_step, self._components())
        if last_step or self._config.async_mode == "disabled":
            handle.result()
        return True

    def maybe_wait_for_staging(self) -> None:
        """Nothing to wait for: when `save` returns, later steps cannot change what is saved."""

    def maybe_wait_for_saving(self) -> None:
        """Wait for the save in flight, and raise its error unless it was seen."""
        if self.enable and self._checkpointer is not None:
            self._checkpointer.wait()

    def close(self) -> None:
        """Wait for the save in flight. Raises an error of it that nobody has seen."""
        if getattr(self, "_checkpointer", None) is not None:
            self._opened().close()

    def _opened(self) -> Checkpointer:
        """The checkpointer, made when it is first needed: `load_only` never needs it."""
        if self._checkpointer is None:
            config = self._config
            weights = config.initial_load_path if config.initial_load_model_only else None
            self._checkpointer = Checkpointer(
                self.folder,
                storage=config.storage,
                keep=Keep(last=config.keep_latest_k) if config.keep_latest_k else None,
                derived=self._derived,
                start_from=config.start_from or weights,
                on_preemption="ignore",  # a torchtitan trainer does not ask
            )
        return self._checkpointer

    def _is_due(self, step: int, *, last_step: bool) -> bool:
        if not self.enable or self._config.load_only:
            return False
        first = step == 1 and self._config.enable_first_step_checkpoint
        return first or last_step or step % self._config.interval == 0

    def _components(self) -> dict[str, Any]:
        return {**self._fixed, **{name: RankZero(value) for name, value in self.states.items() if name not in self._fixed}}

    def _wanted(self) -> dict[str, Any]:
        components, excluded = self._components(), self._config.exclude_from_loading
        unknown = [name for name in excluded if name not in components]
        if unknown:
            raise CallError(f"exclude_from_loading names {unknown[0]!r}; there are {sorted(components)}")
        return {name: value for name, value in components.items() if name not in excluded}

    def _take_back(self, components: Mapping[str, Any]) -> None:
        """Objects were filled in place; plain values come back as new ones."""
        for name, value in components.items():
            if name in self.states and name not in self._fixed:
                self.states[name] = unwrap(value)[0]

    def _fork(self) -> None:
        """Let a new run begin with the whole state of another, not with its weights alone."""
        path, config = self._config.initial_load_path, self._config
        if path is None or config.initial_load_model_only or shards.rank() != 0:
            return
        if open_store(self.folder, config.storage).get(RUN) is None:
            open_run(path, storage=config.storage).fork(self.folder, storage=config.storage)

    def _seed(self) -> Generation | None:
        """Weights of step 0 in a run that has nothing else."""
        if open_store(self.folder, self._config.storage).get(RUN) is None:
            return None
        run = open_run(self.folder, storage=self._config.storage)
        saved = [found for found in run.generations() if found.state == "committed"]
        return saved[-1] if saved and run.head() is None and saved[-1].step == 0 else None

    def _plant(self, seed: Generation | None, like: Mapping[str, Any]) -> bool:
        """Begin a run with the weights of its seed checkpoint."""
        if seed is None:
            raise CallError(f"load_step=0: {self.folder} has no seed checkpoint, or goes on from a later step by now")
        self._opened().restore_or_init(lambda: like, like=like)
        model = {MODEL: self._fixed[MODEL]}
        open_run(self.folder, storage=self._config.storage).restore(like=model, generation=seed, components=[MODEL])
        return True

    def _read(self, step: int) -> bool:
        """Load without claiming the run: nothing will be saved."""
        path = self.folder
        if open_store(path, self._config.storage).get(RUN) is None:
            path = self._config.initial_load_path
        if path is None:
            return False
        run = open_run(path, storage=self._config.storage)
        manifest = run.checkpoint(step=None if step == -1 else step).manifest
        resized = manifest.topology.participants != shards.world_size() and self._config.remap is None
        source = (self._config.remap or {}).get(shards.rank(), shards.rank())
        wanted = {MODEL: self._fixed[MODEL]} if path != self.folder and self._config.initial_load_model_only else self._wanted()
        like = {
            name: value
            for name, value in wanted.items()
            if name in manifest.components and not (resized and manifest.components[name].scope == "rank")
        }
        self._take_back(run.restore(like=like, generation=manifest, components=list(like), rank=source))
        return True

    def _exported(self) -> Any:
        """The weights in `export_dtype`; tensors that are one stay one."""
        dtype = getattr(torch, self._config.export_dtype)
        leaves = [leaf for part in self._parts for leaf in modules.leaves(part, (), MODEL)]
        cast = {id(leaf.data): leaf.data.detach().to(dtype) for leaf in leaves if _is_other_float(leaf.data, dtype)}
        if not cast:
            return self._fixed[MODEL]
        return nested.build({leaf.path: cast.get(id(leaf.data), leaf.data) for leaf in leaves}, where=MODEL)


def _is_other_float(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != dtype


def _merged(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else Merged(*parts)


def _optimizers(optimizers: Any) -> Sequence[Any]:
    """The optimizers of a container, which may call itself one."""
    inner = getattr(optimizers, "optimizers", None)
    if inner is not None:
        return list(inner)
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
