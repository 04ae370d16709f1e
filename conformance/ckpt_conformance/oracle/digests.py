"""Digests of stored bytes, chunks and structures (spec: chapter 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from ckpt_conformance.oracle import canonical


def digest(data: bytes) -> str:
    """The BLAKE3 digest of `data` (D-1)."""
    return f"blake3:{blake3(data).hexdigest()}"


def fits(data: bytes, expected: str) -> bool:
    """Whether `data` has the digest `expected`, which may also be of SHA-256 (D-1)."""
    algorithm, _, hexadecimal = expected.partition(":")
    found = hashlib.sha256(data) if algorithm == "sha256" else blake3(data)
    return found.hexdigest() == hexadecimal


def structure(*items: Any) -> str:
    """The digest of a structure: a list that begins with a tag (D-5 to D-9)."""
    return digest(canonical.encode(list(items)))


def array_leaf(leaf: Mapping[str, Any], chunks: Sequence[str]) -> str:
    """The digest of an array leaf of a layout from those of its cells, in grid order (D-5)."""
    grid = leaf["cuts"] if leaf.get("chunk_shape") is None else leaf["chunk_shape"]
    return structure("ckpt/leaf", leaf["dtype"], leaf["shape"], grid, list(chunks))


def value_leaf(encoded: Any) -> str:
    """The digest of a value leaf (D-6)."""
    return structure("ckpt/value", encoded)


def component(name: str, leaves: Mapping[str, str]) -> str:
    """The digest of a component from those of its leaves, by stored name (D-7)."""
    return structure("ckpt/component", name, dict(leaves))


def topology(facts: Mapping[str, Any]) -> str:
    """The digest of a topology with all of its fields (D-9)."""
    meshes = [{"axes": mesh["axes"], "shape": mesh["shape"], "devices": mesh["devices"]} for mesh in facts.get("meshes", [])]
    known = {name: facts[name] for name in ("framework", "platform", "participants", "devices")}
    return structure("ckpt/topology", {**known, "meshes": meshes})
