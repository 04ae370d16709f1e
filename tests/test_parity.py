"""The two public APIs, name by name and argument by argument: who knows one backend knows the other."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import jaxckpt
import torchckpt

ONLY = {
    "jaxckpt": {"host_rng_state"},  # JAX's own keys are part of the state; what is left are the host's generators
    # All generators of a torch program; parts of a pipeline in one process; what lies in `.grad`; torch's own checkpoints
    # and loaders.
    "torchckpt": {"rng_state", "Merged", "Gradients", "DcpCheckpoint", "ignore_sigterm"},
}
SHARED = sorted(set(jaxckpt.__all__) & set(torchckpt.__all__))


def public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default, parameter.annotation) for parameter in found]


def test_the_same_names() -> None:
    for package, own in ((jaxckpt, ONLY["jaxckpt"]), (torchckpt, ONLY["torchckpt"])):
        assert set(package.__all__) - set(SHARED) == own
        assert list(package.__all__) == sorted(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)


def test_what_needs_no_framework_is_the_same_object() -> None:
    different = {name for name in SHARED if getattr(jaxckpt, name) is not getattr(torchckpt, name)}
    assert different == {"Checkpointer", "Sampler", "initialize", "open_run"}


@pytest.mark.parametrize("name", ["Checkpointer", "open_run"])
def test_the_same_arguments_in_the_same_order_with_the_same_defaults(name: str) -> None:
    assert parameters(getattr(jaxckpt, name)) == parameters(getattr(torchckpt, name))


def test_the_same_methods_with_the_same_arguments() -> None:
    one, other = public(jaxckpt.Checkpointer), public(torchckpt.Checkpointer)
    assert one.keys() == other.keys()
    assert {"save", "restore", "restore_or_init", "should_save", "heartbeat", "wait", "close", "annotate"} <= one.keys()
    for name in one:
        if inspect.isfunction(one[name]):
            assert parameters(one[name]) == parameters(other[name]), name


def test_both_set_up_a_job_from_its_environment_alone() -> None:
    """What may be said beside is the framework's own: how it talks, and which devices it shows."""
    for function in (jaxckpt.initialize, torchckpt.initialize):
        signature = inspect.signature(function)
        assert signature.return_annotation == "Launch"
        assert all(entry.kind == entry.KEYWORD_ONLY for entry in signature.parameters.values())
        assert all(entry.default is not entry.empty for entry in signature.parameters.values())


def test_the_sampler_of_torch_is_that_of_jax_and_more() -> None:
    one, other = public(jaxckpt.Sampler), public(torchckpt.Sampler)
    assert one.keys() <= other.keys()
    ours = parameters(jaxckpt.Sampler)
    assert [entry[:3] for entry in parameters(torchckpt.Sampler)[: len(ours)]] == [entry[:3] for entry in ours]
    theirs = jaxckpt.Sampler(100, 10, seed=3)
    sampler = torchckpt.Sampler(100, 10, seed=3)
    for _ in range(25):
        assert sampler.next().tolist() == theirs.next().tolist()
    assert sampler.get_state() == theirs.get_state()


@pytest.mark.parametrize("package", [jaxckpt, torchckpt])
def test_every_argument_is_described(package: Any) -> None:
    described = re.findall(r"^  (\w+): ", inspect.getdoc(package.Checkpointer) or "", re.MULTILINE)
    assert described == [name for name, *_ in parameters(package.Checkpointer)]
