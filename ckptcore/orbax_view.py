"""What Orbax needs to restore `state/` by itself (spec: orbax view).

A pure function of stored records, and derived data: nothing of ours reads it. All global
components are one tree, each under its name. Empty nodes are shown as what they are. What Orbax
cannot be shown by metadata alone is left out, so that restoring it there is an error and never a
wrong value:

- JSON leaves, whose values are in records of their own;
- arrays on an irregular grid, which are many zarr arrays;
- arrays whose stored dtype is not their logical one, and tied arrays, which have no copy of their own;
- arrays with a slash, backslash, `%` or control character in their path, whose names are escaped.

Orbax builds a list by position: where leaving out would shift its elements, `None` is shown.
Without a target Orbax gives numpy arrays, and key data for typed random keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcore import names, records, values
from ckptcore.digests import value_digest
from ckptcore.events import log
from ckptcore.store import Store

METADATA = "_METADATA"
ARRAY_METADATA = "array_metadatas/process_0"

_SEQUENCE, _DICT = 1, 2
EMPTY = {"None": None, "Dict": {}, "List": [], "Tuple": ()}
"""Orbax's words for empty nodes."""

TreePath = tuple[tuple[str, Any], ...]
"""A component, and the path below it."""
_Leaf = records.ArrayLeaf | records.ValueLeaf


def publish(
    store: Store, state_prefix: str, layouts: Iterable[records.Layout], value_digests: Mapping[str, str] | None = None
) -> None:
    """Put the documents below `state_prefix`, if absent; see `documents`.

    They are for other tools: what another release has put there is left as it is.
    """
    for path, data in documents(layouts, value_digests).items():
        if store.put_if_absent(state_prefix + path, data) != data:
            log.warning("%s%s was written by another release, and is left as it is", state_prefix, path)


def documents(layouts: Iterable[records.Layout], value_digests: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The documents by path below `state/`, from the layouts of all ranks.

    `value_digests` has the digests of JSON leaves by name: they tell empty nodes from other
    values. Without them every JSON leaf is taken for an empty node and shown as `None`.
    """
    leaves = _in_order(layouts)
    empty = {value_digest(values.encode(value, where=word)): word for word, value in EMPTY.items()}
    shown = {path: kind for path, leaf in leaves.items() if (kind := _value_type(leaf, value_digests, empty)) is not None}
    covered = {path[:length] for path in shown for length in _list_places(path)}
    for path in leaves:
        if path not in shown and any(path[:length] not in covered for length in _list_places(path)):
            shown[path] = "None"
    keys = [leaf for leaf in leaves.values() if isinstance(leaf, records.ArrayLeaf) and leaf.prng_impl and _is_whole(leaf)]
    return tree_documents(shown, [Keys(leaf.name, leaf.shape, leaf.chunk_shape or (), leaf.prng_impl or "") for leaf in keys])


@dataclass(frozen=True)
class Keys:
    """An array that is the data of typed random keys: its name in the database, its grid, and the keys' implementation."""

    name: str
    shape: Sequence[int]
    chunk_shape: Sequence[int]
    impl: str


def tree_documents(shown: Mapping[TreePath, str], keys: Iterable[Keys]) -> dict[str, bytes]:
    """The documents of a tree: path → Orbax's word for what is there (`jax.Array`, `scalar`, `string`, `None`, `Dict`, …)."""
    ordered = sorted(shown, key=lambda path: [_rank(element) for element in path])
    tree = {str(tuple(str(value) for _, value in path)): _entry(path, shown[path]) for path in ordered}
    found = {METADATA: encode(_metadata(tree))}
    described = [_key_metadata(one) for one in keys]
    if described:
        found[ARRAY_METADATA] = encode({"array_metadatas": described})
    return found


def _in_order(layouts: Iterable[records.Layout]) -> dict[TreePath, _Leaf]:
    """All global leaves by path. List elements come by number, not by text, as Orbax needs them."""
    leaves: dict[str, tuple[TreePath, _Leaf]] = {}
    for layout in layouts:
        for component, table in layout.components.items():
            if table.scope == "global":
                for leaf in table.leaves:
                    leaves.setdefault(leaf.name, ((("key", component), *leaf.path), leaf))
    return dict(sorted(leaves.values(), key=lambda entry: [_rank(element) for element in entry[0]]))


def _rank(element: tuple[str, Any]) -> tuple[int, int, str]:
    kind, value = element
    return (0, value, "") if kind == "index" and isinstance(value, int) else (1, 0, str(value))


def _list_places(path: TreePath) -> list[int]:
    """The lengths of the parts of a path that end at an element of a list."""
    return [length for length in range(1, len(path) + 1) if path[length - 1][0] == "index"]


def _value_type(leaf: _Leaf, value_digests: Mapping[str, str] | None, empty: Mapping[str, str]) -> str | None:
    """Orbax's word for what is shown of a leaf; None if nothing can be."""
    if isinstance(leaf, records.ArrayLeaf):
        return "jax.Array" if _is_whole(leaf) else None
    return "None" if value_digests is None else empty.get(value_digests.get(leaf.name, ""))


def _is_whole(leaf: records.ArrayLeaf) -> bool:
    """Whether an array lies in the database as Orbax would have written it."""
    plain = all(names.array_name("", (element,)) == f".{element[1]}" for element in leaf.path)
    return plain and leaf.chunk_shape is not None and leaf.dtype == leaf.stored_dtype


def _metadata(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        "tree_metadata": tree,
        "use_ocdbt": True,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }


def _entry(path: TreePath, value_type: str) -> dict[str, Any]:
    return {
        "key_metadata": [{"key": str(value), "key_type": _SEQUENCE if kind == "index" else _DICT} for kind, value in path],
        "value_metadata": {"value_type": value_type, "skip_deserialize": value_type in EMPTY},
    }


def _key_metadata(keys: Keys) -> dict[str, Any]:
    """Tells Orbax that an array is the data of typed random keys."""
    return {
        "array_metadata": {
            "param_name": keys.name,
            "write_shape": list(keys.shape),
            "chunk_shape": list(keys.chunk_shape),
            "ext_metadata": {"random_key_impl": keys.impl},
        }
    }


def encode(document: dict[str, Any]) -> bytes:
    """A document as it is stored."""
    return json.dumps(document, separators=(",", ":")).encode()
