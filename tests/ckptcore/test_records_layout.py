from __future__ import annotations

import json
from typing import Any

import pytest

from ckptcore import canonical, records
from ckptcore.errors import InvalidRecord
from ckptcore.records import ArrayLeaf, Layout, LayoutComponent, ValueLeaf


def array(name: str = "params.w", **changes: Any) -> ArrayLeaf:
    path = tuple(("key", part) for part in name.split(".")[1:])
    facts = {"path": path, "name": name, "dtype": "float32", "stored_dtype": "float32", "shape": (4, 6), "chunk_shape": (2, 6)}
    return ArrayLeaf(**{**facts, **changes})


def layout(*leaves: Any, component: str = "params") -> Layout:
    return Layout(components={component: LayoutComponent(kind="parameters", scope="global", leaves=list(leaves))})


def refuse(record: Layout, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words) as caught:
        records.decode(records.encode(record), Layout, key="the/key.json")
    assert str(caught.value).startswith("the/key.json: ")


LAYOUTS: dict[str, tuple[Layout, str]] = {
    "not sorted": (layout(array("params.b"), array("params.a")), "not sorted"),
    "twice": (layout(array("params.a"), array("params.a")), "each once"),
    "of another component": (layout(array("other.a")), "not named after its path"),
    "not named after its path": (layout(array(path=(("key", "v"),))), "not named after its path"),
    "prefix is no component": (layout(array("params2.a")), "not named after its path"),
    "name beyond the limit": (layout(array("params." + "é" * 600)), "not named after its path"),
    "index is text": (layout(array("params.x", path=(("index", "x"),))), "no integer"),
    "attribute is a number": (layout(array("params.3", path=(("attr", 3),))), "no name"),
    "chunks and cuts": (layout(array(cuts=((0, 4), (0, 6)))), "exactly one"),
    "neither chunks nor cuts": (layout(array(chunk_shape=None)), "exactly one"),
    "chunk of another rank": (layout(array(chunk_shape=(2,))), "does not fit"),
    "empty chunk": (layout(array(chunk_shape=(0, 6))), "does not fit"),
    "too many chunks": (layout(array(shape=(2**26,), chunk_shape=(1,))), "more than an array may have"),
    "too many chunks, by product": (layout(array(shape=(2048, 2048), chunk_shape=(1, 1))), "more than an array may have"),
    "too many elements": (layout(array(shape=(2**40, 2**40), chunk_shape=(2**40, 2**40))), "more elements"),
    "cuts of another rank": (layout(array(chunk_shape=None, cuts=((0, 4),))), "2 dimensions"),
    "cuts do not begin at 0": (layout(array(chunk_shape=None, cuts=((1, 4), (0, 6)))), "must rise"),
    "cuts do not end at the extent": (layout(array(chunk_shape=None, cuts=((0, 3), (0, 6)))), "must rise"),
    "cuts fall": (layout(array(chunk_shape=None, cuts=((0, 3, 2, 4), (0, 6)))), "must rise"),
    "a cut twice": (layout(array(chunk_shape=None, cuts=((0, 2, 2, 4), (0, 6)))), "must rise"),
    "no cuts": (layout(array(chunk_shape=None, cuts=((), (0, 6)))), "must rise"),
    "cuts of nothing": (layout(array(shape=(0, 6), chunk_shape=None, cuts=((0,), (0, 6)))), "must rise"),
    "alias of nothing": (layout(array(chunk_shape=None, alias="params.x")), "names a stored array"),
    "alias of itself": (layout(array(chunk_shape=None, alias="params.w")), "names a stored array"),
    "alias of an alias": (
        layout(
            array("params.a", chunk_shape=None, alias="params.b"), array("params.b", chunk_shape=None, alias="params.w"), array()
        ),
        "names a stored array",
    ),
    "alias of a value": (
        layout(array(chunk_shape=None, alias="params.x"), ValueLeaf(path=(("key", "x"),), name="params.x")),
        "names a stored array",
    ),
    "alias with chunks": (layout(array("params.a", alias="params.w"), array()), "no chunks of its own"),
    "alias of another shape": (layout(array("params.a", chunk_shape=None, alias="params.w", shape=(6, 4)), array()), "differs"),
    "alias of another dtype": (layout(array("params.a", chunk_shape=None, alias="params.w", dtype="int32"), array()), "differs"),
}


@pytest.mark.parametrize(("record", "words"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_that_makes_no_sense_is_refused(record: Layout, words: str) -> None:
    refuse(record, words)


def test_an_alias_names_an_array_of_its_own_component() -> None:
    both = {
        **layout(array("params.w", chunk_shape=None, alias="other.w")).components,
        **layout(array("other.w"), component="other").components,
    }
    refuse(Layout(components=both), "of its component")


def test_huge_dimensions_and_unknown_kinds_of_leaves_are_refused() -> None:
    value = json.loads(records.encode(layout(array())))
    leaf = value["components"]["params"]["leaves"][0]
    for changes in (
        {"shape": [1] * 33},
        {"shape": [-1, 6]},
        {"kind": "pickle"},
        {"path": [["slot", 1]]},
        {"path": [["key", 1, 2]]},
        {"path": [["key", None]]},
    ):
        value["components"]["params"]["leaves"][0] = {**leaf, **changes}
        with pytest.raises(InvalidRecord):
            records.decode(canonical.encode(value), Layout, key="k")


def test_a_large_layout_is_checked_in_linear_time() -> None:
    found = records.decode(records.encode(layout(*(array(f"params.{place:06d}") for place in range(20_000)))), Layout, key="k")
    assert len(found.components["params"].leaves) == 20_000
