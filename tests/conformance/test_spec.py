"""The oracle's own reading of the spec: examples are judged right, and every worked vector comes out."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckpt_conformance.oracle import arrays, canonical, digests, evidence, keys, layouts, manifests, records, values
from ckpt_conformance.oracle.elements import ELEMENTS, logical_bytes
from ckpt_conformance.oracle.run import Run
from ckpt_conformance.place import FilePlace

V1 = Path(__file__).parents[2] / "spec" / "v1"
VALID = sorted((V1 / "examples" / "valid").glob("*/*.json"))
INVALID = json.loads((V1 / "examples" / "index.json").read_text(encoding="utf-8"))


def _block(document: str, tag: str) -> list[str]:
    blocks = re.findall(rf"^```{tag}\n(.*?)^```$", (V1 / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert lines, f"{document} has no {tag}"
    return lines


def _vectors(document: str, tag: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _block(document, tag)]


def _judge(path: Path, *, written: bool) -> records.Judged:
    kind = path.parent.name
    return records.judge("decision" if kind in ("manifest", "abort") else kind, path.read_bytes(), written=written)


def test_every_record_has_a_schema() -> None:
    assert {path.parent.name for path in VALID} == set(records.KINDS)


@pytest.mark.parametrize("path", VALID, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_valid_examples_have_no_fault(path: Path) -> None:
    judged = _judge(path, written=False)
    assert judged.faults == ()
    assert judged.kind == path.parent.name
    assert records.schema_accepts(judged.kind, judged.value)


@pytest.mark.parametrize("entry", INVALID, ids=lambda entry: entry["file"].removeprefix("invalid/").removesuffix(".json"))
def test_invalid_examples_have_a_fault(entry: dict[str, Any]) -> None:
    path = V1 / "examples" / entry["file"]
    judged = _judge(path, written=False)
    assert judged.faults
    if "schema" in entry["refused_by"]:
        assert not records.schema_accepts(path.parent.name, json.loads(path.read_bytes()))


def test_a_writer_leaves_nothing_out() -> None:
    absent = _judge(V1 / "examples" / "valid" / "claim" / "optional-fields-absent.json", written=True)
    assert {clause for clause, _ in absent.faults} == {"R-7"}
    assert absent.value is not None, "what it says can be used all the same"


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b'{"a":1 }', "R-1"),
        (b'{"b":1,"a":2}', "R-1"),
        (b'{"a":"\\u0041"}', "R-1"),
        (b'{"a":-0}', "R-1"),
        ('{"\ufb33":1,"\U0001f600":2}'.encode(), "R-1"),
    ],
)
def test_other_forms_of_json_are_not_canonical(data: bytes, clause: str) -> None:
    value = canonical.decode(data)
    assert clause == "R-1"
    assert canonical.encode(value) != data


@pytest.mark.parametrize(
    "data", [b'{"a":1e2}', b'{"a":0.5}', b'{"a":9007199254740992}', b'{"a":' + b"9" * 5000 + b"}", b'{"a":NaN}']
)
def test_other_numbers_are_refused(data: bytes) -> None:
    with pytest.raises(canonical.NotCanonical) as refused:
        canonical.decode(data)
    assert refused.value.clause == "R-3"


def test_depth_is_counted_from_zero() -> None:
    assert canonical.decode(b"[" * 64 + b"1" + b"]" * 64) is not None
    for data in (b"[" * 65 + b"1" + b"]" * 65, b"[" * 100_000):
        with pytest.raises(canonical.NotCanonical) as refused:
            canonical.decode(data)
        assert refused.value.clause == "R-5"
    assert canonical.decode(b'["' + b"[" * 100 + b'\\""]') is not None, "brackets in text are no nesting"


def test_values() -> None:
    for line in _block("05-values.md", "values"):
        encoded, literal = re.split(r"\s{2,}", line, maxsplit=1)
        special = re.fullmatch(r'float\("(.*)"\)', literal)
        value = float(special[1]) if special else ast.literal_eval(literal)
        assert canonical.encode(values.encode(value)).decode() == encoded
        assert values.problem(canonical.decode(encoded.encode())) is None
    with pytest.raises(TypeError, match="set is no type"):
        values.encode({1})


def test_refused_values() -> None:
    for line in _block("05-values.md", "values-refused"):
        try:
            found = values.problem(canonical.decode(line.encode()))
        except canonical.NotCanonical:
            continue
        assert found is not None, line


def test_depth_of_values() -> None:
    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else 0

    assert values.problem(nested(48)) is None
    assert values.problem(nested(49)) == ("V-9", "a value deeper than 48")
    assert values.problem({"$tuple": [nested(46)]}) is None
    assert values.problem({"$tuple": [nested(47)]}) is not None
    assert values.problem({"$dict": [[1, nested(45)]]}) is None
    assert values.problem({"$dict": [[1, nested(46)]]}) is not None


def test_digests() -> None:
    for vector in _vectors("07-digests.md", "vectors-bytes"):
        assert digests.digest(bytes.fromhex(vector["hex"])) == vector["digest"]
    for vector in _vectors("07-digests.md", "vectors-leaf"):
        assert digests.array_leaf({"chunk_shape": None, "cuts": None, **vector}, vector["chunks"]) == vector["digest"]
    for vector in _vectors("07-digests.md", "vectors-value"):
        assert digests.value_leaf(vector["encoded"]) == vector["digest"]
    for vector in _vectors("07-digests.md", "vectors-component"):
        assert digests.component(vector["component"], vector["leaves"]) == vector["digest"]
    for vector in _vectors("07-digests.md", "vectors-topology"):
        assert digests.topology(vector["topology"]) == vector["digest"]
    assert digests.fits(b"abc", "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert not digests.fits(b"abd", digests.digest(b"abc"))


def test_chunks() -> None:
    for vector in _vectors("07-digests.md", "vectors-chunk"):
        text = vector["values"]
        numbers = [complex(text[1:-1].replace("i", "j"))] if "i" in text else json.loads(text)
        array = np.array(numbers, getattr(ml_dtypes, vector["dtype"], vector["dtype"]))
        assert logical_bytes(array, vector["dtype"]).hex() == vector["hex"]


def test_dtypes() -> None:
    rows = re.findall(r"^\| (`bool`.*|`int1`.*) \| (.*) \|$", (V1 / "06-arrays.md").read_text(encoding="utf-8"), re.MULTILINE)
    table = {name: "uint8" if "uint8" in stored else name for of, stored in rows for name in re.findall(r"`(\w+)`", of)}
    assert table == {name: element.stored for name, element in ELEMENTS.items()}


def test_arrays() -> None:
    for vector in _vectors("06-arrays.md", "vectors-array"):
        leaf = {"chunk_shape": None, "cuts": None, "alias": None, "stored_dtype": vector["dtype"], **vector}
        expected = arrays.expected({vector["name"]: leaf})
        assert sorted(expected) == vector["keys"]
        assert [data.decode() for _, data in sorted(expected.items()) if data is not None] == vector["metadata"]
        assert sum(1 for _ in layouts.cells(leaf)) == layouts.count(leaf)


def test_names() -> None:
    for line in _block("03-layout.md", "names"):
        component, path, name = line.split(" ")
        assert layouts.layout_name(component, json.loads(path)) == name


def test_the_example_generation_derives_itself(tmp_path: Path) -> None:
    """The eleven files of chapter 7 are one generation: from receipts and layouts follow indexes, roster and manifest."""
    place = FilePlace(tmp_path)
    generation = "000001-000000000100-1"

    def example(name: str) -> bytes:
        return (V1 / "examples" / "valid" / f"{name}.json").read_bytes()

    place.write("run.json", example("run/fresh"))
    place.write(keys.layout(generation, digests.digest(example("layout/small-model"))), example("layout/small-model"))
    for rank in (0, 1):
        place.write(keys.receipt(generation, rank), example(f"receipt/rank-{rank}"))
        place.write(keys.values(generation, rank), example(f"values/rank-{rank}"))
    delivery, problems = evidence.delivery(Run(place), generation)
    assert problems == []
    assert delivery is not None
    assert {problem.key.split("/")[2] for problem in evidence.faults(delivery)} == {"state"}, "only the databases are not there"
    derived = manifests.derive(delivery)
    assert derived.manifest == example("manifest/two-ranks")
    objects = [example("roster/two-ranks"), *(example(f"index/{name}") for name in ("data", "optimizer", "params", "rng"))]
    assert sorted(derived.objects.values()) == sorted(objects)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("run.json", "run"),
        ("incarnations/000001/claim.json", "claim"),
        ("ledger/000001-000000000001-1.json", "decision"),
        ("ledger/000001-000000000001-1.retired.json", "retired"),
        ("ledger/000001-000000000001-1.staged.json", "staged"),
        ("generations/000001-000000000001-1/staged/00001.json", "staged-receipt"),
        ("notes/000001-000000000001-1/pin.json", "note"),
        ("incarnations/000000/claim.json", None),
        ("ledger/000000-000000000001-1.json", None),
        ("ledger/000001-000000000001-01.json", None),
        ("ledger/000001-000000000001-1.json.bak", None),
        ("run.json\n", None),
        ("generations/000001-000000000001-1/receipts/1.json", None),
    ],
)
def test_places_of_records(key: str, kind: str | None) -> None:
    found = keys.named(key)
    assert (found.kind if found else None) == kind


def test_generations_are_ordered_as_numbers() -> None:
    mixed = ["000002-000000000001-1", "000001-000000000010-1", "000001-000000000002-10", "000001-000000000002-9"]
    assert sorted(mixed, key=keys.Generation.parse) == mixed[::-1]
