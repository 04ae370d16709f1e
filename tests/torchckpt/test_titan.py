"""The checkpoint manager for torchtitan-style trainers: its interface, and whole runs of a trainer that uses it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ckptcore.errors import CallError, ForkRequired, GuaranteeError, NotFound
from tests.torchckpt.procs import run_job
from torchckpt import open_run
from torchckpt.titan import CheckpointManager, Config

pytestmark = pytest.mark.slow

# torchtitan 0.3.0's public interface. Where it is installed, a test holds this against the real one.
METHODS = {
    "load": {"step": -1},
    "save": {"curr_step": inspect.Parameter.empty, "last_step": False},
    "maybe_wait_for_staging": {},
    "maybe_wait_for_saving": {},
    "close": {},
}
ARGUMENTS = ("config", "dataloader", "model_parts", "optimizers", "lr_schedulers", "states", "sd_adapter", "base_folder")
SETTINGS = {
    "enable": False,
    "folder": "checkpoint",
    "interval": 500,
    "initial_load_path": None,
    "initial_load_model_only": True,
    "initial_load_in_hf": False,
    "initial_load_in_hf_quantized": False,
    "last_save_model_only": True,
    "last_save_in_hf": False,
    "export_dtype": "float32",
    "keep_latest_k": 10,
    "load_step": -1,
    "exclude_from_loading": [],
    "enable_first_step_checkpoint": False,
    "create_seed_checkpoint": False,
    "load_only": False,
    "async_mode": "disabled",
}
OWN_SETTINGS = {"derived", "storage", "start_from", "accept_guarantee", "remap"}


class Schedulers:
    """Like torchtitan's container: several schedulers, of which the place is saved."""

    def __init__(self, optimizers: Optimizers) -> None:
        self.schedulers = [LambdaLR(optimizer, lambda step: 1 / (1 + step)) for optimizer in optimizers]

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.schedulers[0].last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for scheduler in self.schedulers:
            scheduler.last_epoch = state["last_epoch"]


class Optimizers(torch.optim.Optimizer):
    """Like torchtitan's container: an optimizer by type, without state of its own."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=0.1) for part in parts]
        torch.optim.Optimizer.__init__(self, [p for part in parts for p in part.parameters()], {})

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.optimizers)

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        for optimizer in self.optimizers:
            optimizer.step()


class Loader:
    """Numbers, in order."""

    def __init__(self) -> None:
        self.position = 0

    def __next__(self) -> torch.Tensor:
        self.position += 1
        return torch.arange(4.0) + self.position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Trainer:
    """A trainer as torchtitan has it: it is a state of its own checkpoint, and calls the manager at every step."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        parts: int = 1,
        seed: int = 0,
        wrap: Callable[[nn.Module], Any] = lambda _: None,
        **settings: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.step, self.steps, self.losses = 0, steps, list[float]()
        self.model_parts = [_Part(number, parts) for number in range(parts)]
        for part in self.model_parts:
            wrap(part)
        self.optimizers = Optimizers(self.model_parts)
        self.schedulers = Schedulers(self.optimizers)
        self.loader = Loader()
        config = Config(**{"enable": True, "interval": 2, "last_save_model_only": False, **settings})
        self.load_step = config.load_step
        self.checkpointer = config.build(
            dataloader=self.loader,
            model_parts=self.model_parts,
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states={"train_state": self, "plain": {"note": "first"}},
            sd_adapter=None,
            base_folder=str(folder),
        )

    def train(self, *, stop_after: int | None = None) -> Trainer:
        """Train to the end, or die after a step; then the state is what matters."""
        self.loaded = self.checkpointer.load(step=self.load_step)
        while self.step < self.steps:
            self.step += 1
            self._train_step()
            self.checkpointer.save(self.step, last_step=self.step == self.steps)
            if self.step == stop_after:
                return self
        self.checkpointer.close()
        return self

    def _train_step(self) -> None:
        value = next(self.loader) + torch.rand(4)
        for part in self.model_parts:
            value = part(value)
        value.sum().backward()
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.schedulers.step()
        self.losses.append(value.sum().item())

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class _Part(nn.Module):
    """The layers of one stage of four, under the names that they have in the whole model."""

    def __init__(self, number: int, parts: int) -> None:
        super().__init__()
        size = 4 // parts
        self.layers = nn.ModuleDict({str(index): nn.Linear(4, 4) for index in range(number * size, (number + 1) * size)})

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            value = torch.tanh(layer(value))
        return value


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value for part in trainer.model_parts for name, value in part.state_dict().items()}


def _run(folder: Path) -> Any:
    return open_run(str(folder / "checkpoint"))


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_trainer_resumes_as_if_it_had_never_stopped(tmp_path: Path, mode: str) -> None:
    expected = Trainer(tmp_path / "whole", steps=7).train()
    first = Trainer(tmp_path, steps=7, async_mode=mode).train(stop_after=5)
    first.checkpointer.maybe_wait_for_saving()
    again = Trainer(tmp_path, steps=7, async_mode=mode, seed=9).train()
    assert again.loaded
    assert again.losses == expected.losses[4:]
    assert all(torch.equal(value, _weights(expected)[name]) for name, value in _weights(again).items())
    assert [found.step for found in _run(tmp_path).generations()] == [2, 4, 6, 7]
    assert _run(tmp_path).head().guarantee.level == "exact"


def test_a_pipeline_of_another_size_goes_on(tmp_path: Path) -> None:
    """Two parts on one rank, then one: their names are those of the whole model."""
    first = Trainer(tmp_path, steps=4, parts=2).train()
    again = Trainer(tmp_path, steps=4, parts=1, seed=9)
    assert again.checkpointer.load()
    assert again.step == 4
    assert all(torch.equal(value, _weights(first)[name]) for name, value in _weights(again).items())
    moments = [{name: state["exp_avg"] for name, state in _moments(trainer).items()} for trainer in (first, again)]
    assert all(torch.equal(value, moments[1][name]) for name, value in moments[0].items())
    again.checkpointer.close()


SHARDED = """
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from tests.torchckpt.test_titan import Trainer

def trainer(folder, seed=0):
    made = Trainer(Path(folder), steps=5, parts=2, seed=seed, wrap=fully_shard, async_mode="async", accept_guarantee="replay")
    torch.manual_seed(RANK + seed)  # each rank draws numbers of its own
    return made

expected = trainer(ARGS[0]).train().losses
trainer(ARGS[1]).train(stop_after=4).checkpointer.maybe_wait_for_saving()
again = trainer(ARGS[1], seed=9).train()
print("SAME", again.loaded, again.losses == expected[4:], len(again.losses))
"""


@pytest.mark.slow
def test_sharded_trainers_resume_as_if_they_had_never_stopped(tmp_path: Path) -> None:
    for output in run_job(SHARDED, size=2, args=[str(tmp_path / "whole"), str(tmp_path)]):
        assert "SAME True True 1" in output
    assert _run(tmp_path).head().guarantee.level == "exact"
    with pytest.raises(ForkRequired, match="the data cursors of 2 ranks do not fit 1"):
        Trainer(tmp_path, steps=6, accept_guarantee="replay").train()
    smaller = Trainer(tmp_path, steps=6, accept_guarantee="replay", remap={0: 1}).train()
    assert (smaller.step, len(smaller.losses), smaller.loader.position) == (6, 1, 6)


def test_folders_by_step_say_nothing(tmp_path: Path) -> None:
    """What is there and newest is read from the ledger."""
    Trainer(tmp_path, steps=4).train()
    stray = tmp_path / "checkpoint" / "step-999"
    stray.mkdir()
    (stray / ".metadata").write_bytes(b"x")
    again = Trainer(tmp_path, steps=4, seed=9).train()
    assert (again.loaded, again.step, again.losses) == (True, 4, [])


def test_old_checkpoints_are_purged(tmp_path: Path) -> None:
    Trainer(tmp_path, steps=10, keep_latest_k=2).train()
    states = [(found.step, found.state) for found in _run(tmp_path).generations()]
    assert states == [(2, "retired"), (4, "retired"), (6, "retired"), (8, "committed"), (10, "committed")]
    assert len(list((tmp_path / "checkpoint" / "generations").iterdir())) == 2
    Trainer(tmp_path / "all", steps=10, keep_latest_k=0).train()
    assert {found.state for found in _run(tmp_path / "all").generations()} == {"committed"}


def test_the_last_step_is_weights_from_which_nothing_resumes(tmp_path: Path) -> None:
    first = Trainer(tmp_path, steps=5, last_save_model_only=True, export_dtype="bfloat16").train()
    run = _run(tmp_path)
    assert run.head().step == 4
    found = run.restore(step=5)
    assert list(found) == ["model"]
    assert {str(value.dtype) for value in found["model"].values()} == {"bfloat16"}
    expected = _weights(first)["layers.0.weight"].bfloat16()
    assert torch.equal(torch.tensor(found["model"]["layers.0.weight"].astype("f4")), expected.float())
    longer = Trainer(tmp_path, steps=6, seed=9).train()
    assert len(longer.losses) == 2


def test_a_step_can_be_chosen(tmp_path: Path) -> None:
    Trainer(tmp_path, steps=6).train()
    chosen = Trainer(tmp_path, steps=6, load_step=2, seed=9).train()
    assert len(chosen.losses) == 4
    with pytest.raises(NotFound, match="no checkpoint of step 3"):
        Trainer(tmp_path, steps=6, load_step=3).train()


def test_states_that_are_no_objects_come_back_too(tmp_path: Path) -> None:
    first = Trainer(tmp_path, steps=3)
    first.checkpointer.states["plain"]["note"] = "second"
    first.train()
    again = Trainer(tmp_path, steps=3, seed=9).train()
    assert again.checkpointer.states["plain"] == {"note": "second"}


def test_what_is_excluded_breaks_the_promise_unless_that_is_accepted(tmp_path: Path) -> None:
    Trainer(tmp_path, steps=4).train()
    with pytest.raises(CallError, match="names 'nothing'"):
        Trainer(tmp_path, steps=6, exclude_from_loading=["nothing"]).train()
    with pytest.raises(ForkRequired):
        Trainer(tmp_path, steps=6, exclude_from_loading=["dataloader"]).train()
    with pytest.raises(GuaranteeError):
        Trainer(tmp_path, steps=6, exclude_from_loading=["rng"]).train()
    again = Trainer(tmp_path, steps=6, exclude_from_loading=["rng"], accept_guarantee="replay").train()
    assert (len(again.losses), again.loader.position) == (2, 6)


def test_a_new_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    first = Trainer(tmp_path / "first", steps=4).train()
    settings = {"initial_load_path": str(tmp_path / "first" / "checkpoint"), "steps": 4}
    second = Trainer(tmp_path / "second", seed=9, **settings)
    assert second.checkpointer.load()
    assert second.step == 0
    assert all(torch.equal(value, _weights(first)[name]) for name, value in _weights(second).items())
    second.checkpointer.close()
    whole = Trainer(tmp_path / "third", seed=9, initial_load_model_only=False, **{**settings, "steps": 6}).train()
    assert len(whole.losses) == 2
    assert len(Trainer(tmp_path / "third", seed=9, initial_load_model_only=False, **{**settings, "steps": 8}).train().losses) == 2


def test_a_seed_checkpoint_begins_a_run(tmp_path: Path) -> None:
    seed = Trainer(tmp_path, steps=4, seed=5, last_save_model_only=True)
    assert seed.checkpointer.save(curr_step=0, last_step=True)
    seed.checkpointer.close()
    second = Trainer(tmp_path, steps=4, seed=9)
    assert second.checkpointer.load()
    assert all(torch.equal(value, _weights(seed)[name]) for name, value in _weights(second).items())
    second.checkpointer.close()
    trained = Trainer(tmp_path, steps=4, seed=9).train()
    assert (trained.loaded, len(trained.losses)) == (True, 4)
    assert Trainer(tmp_path, steps=6, seed=9).train().losses[:0] == []
    assert _run(tmp_path).head().step == 6


def test_who_only_loads_claims_nothing(tmp_path: Path) -> None:
    first = Trainer(tmp_path, steps=4).train()
    claims = sorted((tmp_path / "checkpoint" / "incarnations").iterdir())
    reader = Trainer(tmp_path, steps=4, seed=9, load_only=True)
    assert reader.checkpointer.load()
    assert not reader.checkpointer.save(4, last_step=True)
    reader.checkpointer.close()
    assert reader.step == 4
    assert all(torch.equal(value, _weights(first)[name]) for name, value in _weights(reader).items())
    assert sorted((tmp_path / "checkpoint" / "incarnations").iterdir()) == claims
    nothing = Trainer(tmp_path / "nothing", steps=4, load_only=True)
    assert not nothing.checkpointer.load()


def test_a_manager_that_is_off_does_nothing(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=2, enable=False).train()
    trainer.checkpointer.maybe_wait_for_saving()
    assert (trainer.loaded, len(trainer.losses)) == (False, 2)
    assert list(tmp_path.iterdir()) == []


def test_the_first_step_can_be_saved(tmp_path: Path) -> None:
    Trainer(tmp_path, steps=3, enable_first_step_checkpoint=True).train()
    assert [found.step for found in _run(tmp_path).generations()] == [1, 2, 3]


@pytest.mark.parametrize(
    "settings",
    [
        {"folder": " "},
        {"interval": 0},
        {"keep_latest_k": 1},
        {"keep_latest_k": -1},
        {"async_mode": "soon"},
        {"export_dtype": "int8"},
        {"exclude_from_loading": ["model"]},
        {"initial_load_in_hf": True},
        {"initial_load_in_hf_quantized": True},
        {"last_save_in_hf": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_cannot_be_kept_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CallError, match=f"checkpoint manager: {next(iter(settings))}|has 'model'"):
        Config(**settings)


def test_the_interface_is_torchtitans() -> None:
    assert _interface(CheckpointManager) == (METHODS, ARGUMENTS)
    settings = _settings(CheckpointManager.Config)
    assert settings.keys() - SETTINGS.keys() == OWN_SETTINGS
    assert {name: settings[name] for name in SETTINGS} == SETTINGS
    assert all(settings[name] is None for name in OWN_SETTINGS)


@pytest.mark.filterwarnings("ignore")
def test_the_interface_is_that_of_the_installed_torchtitan() -> None:
    manager = _torchtitan("torchtitan.components.checkpoint").CheckpointManager
    assert _interface(manager) == (METHODS, ARGUMENTS)
    assert _settings(manager.Config) == SETTINGS


@pytest.mark.filterwarnings("ignore")
def test_torchtitans_own_containers_are_saved_and_loaded(tmp_path: Path) -> None:
    containers = _torchtitan("torchtitan.components.optimizer")
    group = _torchtitan("torchtitan.components.optimizer.optimizer").ParamGroupConfig

    def made(seed: int) -> tuple[Trainer, Any, Any]:
        trainer = Trainer(tmp_path, steps=4, parts=2, seed=seed)
        options = {"lr": 0.1 * (1 + seed), "betas": (0.9, 0.95)}
        config = containers.OptimizersContainer.Config(
            implementation="for-loop", param_groups=[group(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=options)]
        )
        optimizers = containers.OptimizersContainer(config, model_parts=trainer.model_parts)
        schedulers = containers.LRSchedulersContainer(optimizers, lambda step: 1 / (1 + step))
        trainer.checkpointer = Config(enable=True, interval=1, last_save_model_only=False).build(
            dataloader=trainer.loader,
            model_parts=trainer.model_parts,
            optimizers=optimizers,
            lr_schedulers=schedulers,
            states={"train_state": trainer},
            sd_adapter=None,
            base_folder=str(tmp_path),
        )
        return trainer, optimizers, schedulers

    first, optimizers, schedulers = made(0)
    first.optimizers, first.schedulers = optimizers, schedulers
    first.train(stop_after=3).checkpointer.close()
    again, others, their_schedulers = made(1)
    assert again.checkpointer.load()
    assert again.step == 3
    assert their_schedulers.state_dict() == schedulers.state_dict()
    mine, theirs = optimizers.state_dict(), others.state_dict()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key], key
    again.checkpointer.close()


def _torchtitan(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"torchtitan 0.3.0 is not installed with all that it imports: {error}")


def _interface(manager: type) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """The arguments of its methods, with their defaults, and those of its constructor."""
    methods = {name: inspect.signature(getattr(manager, name)).parameters for name in METHODS}
    shown = {name: {arg: told.default for arg, told in found.items() if arg != "self"} for name, found in methods.items()}
    return shown, tuple(name for name in inspect.signature(manager.__init__).parameters if name != "self")


def _settings(config: type) -> dict[str, Any]:
    made = config()
    return {found.name: getattr(made, found.name) for found in dataclasses.fields(config)}


def _moments(trainer: Trainer) -> dict[str, Any]:
    named = {name: value for part in trainer.model_parts for name, value in part.named_parameters()}
    states = {key: value for optimizer in trainer.optimizers for key, value in optimizer.state.items()}
    return {name: states[parameter] for name, parameter in named.items()}
