"""What is compared: one subject a class. Nothing is imported here, so one that is not installed hinders none of the others."""

SUBJECTS: dict[str, str] = {
    "jax": "benchmarks.peers.ours_jax:Jax",
    "torch": "benchmarks.peers.ours_torch:Torch",
    "orbax": "benchmarks.peers.orbax:AsItComes",
    "orbax-tuned": "benchmarks.peers.orbax:Tuned",
    "dcp": "benchmarks.peers.dcp:Sync",
    "dcp-async": "benchmarks.peers.dcp:Async",
    "torch-checkpointing": "benchmarks.peers.torch_checkpointing:Subject",
    "safetensors": "benchmarks.peers.safetensors:Subject",
}
"""Name on the command line → `module:class`."""
