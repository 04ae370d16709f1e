"""Damage to a store behind everybody's back: the ops of SCENARIOS.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckpt_conformance.oracle import canonical, digests, keys, layouts
from ckpt_conformance.oracle.arrays import Databases, keys_of_cell
from ckpt_conformance.place import Place

_KINDS = ("flip", "truncate", "delete", "replace", "swap", "copy", "edit")
_DATABASE = re.compile(r"generations/[^/]+/state/ranks/[^/]+/")
_CHECKSUM = 4
"""Bytes of CRC-32C behind a stored cell (A-17)."""
_DIGEST = re.compile(r"blake3-[0-9a-f]{64}")


def apply(place: Place, ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Do each op in order; the keys that were written or deleted, each once.

    An op is an object with one of the keys `flip`, `truncate`, `delete`, `replace`, `swap`, `copy`, `edit`, whose value is a key
    in which `*` stands for any text of a segment, or `{"chunk": {"array", "cell", "generation", "nth"}}`. Raises `ValueError` for
    an op that does not fit what is there.
    """
    touched: dict[str, None] = {}
    for op in ops:
        kinds = [kind for kind in _KINDS if kind in op]
        if len(kinds) != 1:
            raise ValueError(f"an op does one of {', '.join(_KINDS)}: {dict(op)}")
        touched |= dict.fromkeys(_OPS[kinds[0]](place, op))
    return list(touched)


def find(place: Place, pattern: str, *, first: bool = False) -> str:
    """The one key that fits `pattern`, in which `*` stands for any text within a segment; `first`: the first of several."""
    wanted = re.compile("[^/]*".join(map(re.escape, pattern.split("*"))))
    found = [key for key in place.keys(pattern.partition("*")[0]) if wanted.fullmatch(key)]
    if not found or (len(found) > 1 and not first):
        raise ValueError(f"{pattern} fits {len(found)} keys: {', '.join(found[:5])}")
    return found[0]


def _target(place: Place, op: Mapping[str, Any], kind: str) -> tuple[str, bytes, int, int]:
    """The object that an op is about: key, content, and the bounds of the bytes in question."""
    if isinstance(op[kind], Mapping) or "chunk" in op:
        return _chunk(place, op["chunk"] if "chunk" in op else op[kind]["chunk"])
    key = find(place, op[kind], first=op.get("first", False))
    content = _read(place, key)
    return key, content, 0, len(content)


def _read(place: Place, key: str) -> bytes:
    content = place.read(key)
    if content is None:
        raise ValueError(f"{key} is not there")
    return content


def _flip(place: Place, op: Mapping[str, Any]) -> list[str]:
    """One bit in the middle."""
    key, content, start, stop = _target(place, op, "flip")
    if start == stop:
        raise ValueError(f"{key} is empty: there is no bit to flip")
    middle = (start + stop) // 2
    place.write(key, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    return [key]


def _truncate(place: Place, op: Mapping[str, Any]) -> list[str]:
    """To half; a chunk's file to the middle of the chunk."""
    key, content, start, stop = _target(place, op, "truncate")
    place.write(key, content[: (start + stop) // 2])
    return [key]


def _delete(place: Place, op: Mapping[str, Any]) -> list[str]:
    key = _target(place, op, "delete")[0]
    place.delete(key)
    return [key]


def _replace(place: Place, op: Mapping[str, Any]) -> list[str]:
    """With a text, under a key that need not be there; bytes of a chunk with that text, repeated."""
    if isinstance(op["replace"], str) and "*" not in op["replace"]:
        place.write(op["replace"], op["with"].encode())
        return [op["replace"]]
    key, content, start, stop = _target(place, op, "replace")
    text = op["with"].encode()
    if (start, stop) != (0, len(content)):
        text = (text * (stop - start))[: stop - start]
    place.write(key, content[:start] + text + content[stop:])
    return [key]


def _swap(place: Place, op: Mapping[str, Any]) -> list[str]:
    """Exchange the contents of two objects, or the bytes of two chunks of one size."""
    if isinstance(op["with"], Mapping):
        return _swap_chunks(place, op)
    key, content, *_ = _target(place, op, "swap")
    other = find(place, op["with"], first=op.get("first", False))
    place.write(key, _read(place, other))
    place.write(other, content)
    return [key, other]


def _swap_chunks(place: Place, op: Mapping[str, Any]) -> list[str]:
    """The stored cells, each with its checksum, so that only the digests can tell."""
    one, content, start, stop = _target(place, op, "swap")
    other, second, begin, end = _chunk(place, op["with"]["chunk"])
    if stop - start != end - begin:
        raise ValueError("two chunks of different sizes cannot be swapped")
    mine, theirs = content[start : stop + _CHECKSUM], second[begin : end + _CHECKSUM]
    place.write(one, content[:start] + theirs + content[stop + _CHECKSUM :])
    second = _read(place, other)  # it may be the same file
    place.write(other, second[:begin] + mine + second[end + _CHECKSUM :])
    return [one, other]


def _copy(place: Place, op: Mapping[str, Any]) -> list[str]:
    """To a key, which need not be there unless it has a `*`; a stored cell with its checksum to one of the same size."""
    _, content, start, stop = _target(place, op, "copy")
    if isinstance(op["to"], Mapping):
        other, second, begin, end = _chunk(place, op["to"]["chunk"])
        if stop - start != end - begin:
            raise ValueError("a chunk cannot be copied to one of another size")
        place.write(other, second[:begin] + content[start : stop + _CHECKSUM] + second[end + _CHECKSUM :])
        return [other]
    other = find(place, op["to"], first=op.get("first", False)) if "*" in op["to"] else op["to"]
    place.write(other, content)
    return [other]


def _edit(place: Place, op: Mapping[str, Any]) -> list[str]:
    """Set fields of a record, and with `rename` give it the key of its new digest."""
    key, content, *_ = _target(place, op, "edit")
    record = canonical.decode(content)
    for path, value in op["set"].items():
        _set(record, path, value)
    content = canonical.encode(record)
    if not op.get("rename"):
        place.write(key, content)
        return [key]
    renamed = _DIGEST.sub(keys.in_key(digests.digest(content)), key)
    if renamed == key:
        raise ValueError(f"{key} has no digest that could be made to fit, or nothing was changed")
    place.delete(key)
    place.write(renamed, content)
    return [key, renamed]


def _set(record: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path. Where a key has dots itself, the longest one that is there counts."""
    if isinstance(record, list):
        place, _, rest = path.partition(".")
        if rest:
            _set(record[int(place)], rest, value)
        else:
            record[int(place)] = value
        return
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        name, rest = ".".join(parts[:length]), ".".join(parts[length:])
        if name in record and rest:
            _set(record[name], rest, value)
            return
        if name in record or (length == 1 and not rest):
            record[name] = value
            return
    raise ValueError(f"the record has no {path}")


def _chunk(place: Place, wanted: Mapping[str, Any]) -> tuple[str, bytes, int, int]:
    """The file that holds a cell's bytes, and where in it they are: `array` is a stored name, `cell` a number of its grid.

    `generation` is needed where several have the array; `nth` picks one of several places with the same bytes.
    """
    leaf, raw, generation = _content(place, wanted)
    found = []
    for key in place.keys(keys.state(generation)):
        content = _read(place, key)
        found += [(key, content, hit.start(), hit.end() - _CHECKSUM) for hit in re.finditer(re.escape(raw), content)]
    nth = wanted.get("nth")
    if not found or (nth is None and len(found) > 1):
        raise ValueError(f"the {len(raw)} bytes of {leaf['name']} occur {len(found)} times in the databases of {generation}")
    return found[nth or 0]


def _content(place: Place, wanted: Mapping[str, Any]) -> tuple[layouts.Leaf, bytes, str]:
    """The leaf, the bytes that are stored of the cell, and the generation. They are those of an undamaged store."""
    candidates = [wanted["generation"]] if "generation" in wanted else _generations(place)
    for generation in candidates:
        for key in place.keys(f"{keys.folder(generation)}layouts/"):
            for component in canonical.decode(_read(place, key))["components"].values():
                for leaf in component["leaves"]:
                    if _is_named(leaf, component["scope"], wanted["array"]):
                        return leaf, _stored(place, generation, leaf, wanted), generation
    raise ValueError(f"no layout of {', '.join(candidates) or 'any generation'} has the array {wanted['array']}")


def _generations(place: Place) -> list[str]:
    found = {generation for key in place.keys("generations/") if (generation := keys.generation_of(key)) is not None}
    return sorted(found, key=keys.Generation.parse, reverse=True)


def _is_named(leaf: layouts.Leaf, scope: str, stored: str) -> bool:
    name = re.sub(r"^rank_state\.[0-9]+\.", "", stored) if scope == "rank" else stored
    return layouts.is_array(leaf) and leaf["name"] == name


def _stored(place: Place, generation: str, leaf: layouts.Leaf, wanted: Mapping[str, Any]) -> bytes:
    """What the database of a rank has of a cell: elements, padding and checksum (A-17)."""
    cell = list(layouts.cells(leaf))[wanted["cell"]]
    key = keys_of_cell(wanted["array"], leaf, cell)[1]
    databases = Databases(place)
    folders = {found[0] for name in place.keys(f"{keys.state(generation)}ranks/") if (found := _DATABASE.match(name))}
    for folder in sorted(folders):
        found = databases.values(folder, [key])
        if key in found:
            return found[key]
    raise ValueError(f"no database of {generation} has the cell {key}")


_OPS: dict[str, Callable[[Place, Mapping[str, Any]], list[str]]] = {
    "flip": _flip,
    "truncate": _truncate,
    "delete": _delete,
    "replace": _replace,
    "swap": _swap,
    "copy": _copy,
    "edit": _edit,
}
