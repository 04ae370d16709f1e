"""The documents: clause numbers, links, and every worked vector."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3

from ckptcore import canonical, digests, dtypes, names, records, values
from ckptcore.array_spec import StoredArray
from ckptcore.errors import InvalidRecord
from ckptcore.geometry import Grid
from ckptcore.names import GenerationId
from ckptcore.proof import Evidence, Proven, prove
from ckptcore.sampler import Sampler

SPEC = Path(__file__).parents[2] / "spec"
V1 = SPEC / "v1"
DOCUMENTS = sorted(SPEC.rglob("*.md"))
CLAUSE = re.compile(r"^(?:- |\d+\. )?\*\*([A-Z]-\d+)\*\*", re.MULTILINE)
REFERENCE = re.compile(r"\*\*([A-Z]-\d+)\*\*")
GENERATION = GenerationId(1, 100, 1)


def _text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def _block(document: str, tag: str) -> list[str]:
    """The lines of the fenced blocks with `tag`; there must be some."""
    blocks = re.findall(rf"^```{tag}\n(.*?)^```$", _text(V1 / document), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert lines, f"{document} has no {tag}"
    return lines


def _vectors(tag: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _block("07-digests.md", tag)]


def _hash(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


def test_there_are_documents() -> None:
    assert len(DOCUMENTS) == 19


def test_clause_numbers_are_unique() -> None:
    clauses = [clause for document in DOCUMENTS for clause in CLAUSE.findall(_text(document))]
    assert len(clauses) > 150
    assert sorted(clauses) == sorted(set(clauses))


def test_a_document_has_clauses_of_one_letter() -> None:
    table = dict(re.findall(r"\[(\d\d-[\w-]+\.md)\]\([^)]+\) \| (\w) \|", _text(SPEC / "README.md")))
    found = {document.name: {clause[0] for clause in CLAUSE.findall(_text(document))} for document in V1.glob("*.md")}
    assert found == {name: {letter} for name, letter in table.items()}


def test_clauses_that_are_cited_exist() -> None:
    clauses = {clause for document in DOCUMENTS for clause in CLAUSE.findall(_text(document))}
    cited = {clause for document in DOCUMENTS for clause in REFERENCE.findall(_text(document))}
    reasons = json.loads(_text(V1 / "examples" / "index.json"))
    cited |= {clause for entry in reasons for clause in re.findall(r"\(([A-Z]-\d+)\)", entry["why"])}
    assert cited - clauses == set()


def test_links_resolve() -> None:
    broken = [
        f"{document.name}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", _text(document))
        if not target.startswith("https://") and not (document.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("record", records.RECORDS)
def test_every_field_is_documented(record: str) -> None:
    text = _text(V1 / "04-records.md")
    missing = [field for field in records.RECORDS[record].__struct_fields__ if f"`{field}`" not in text]
    assert missing == []


def test_names() -> None:
    for line in _block("03-layout.md", "names"):
        component, path, name = line.split(" ")
        elements = tuple((kind, value) for kind, value in json.loads(path))
        assert names.array_name(component, elements) == name


def test_values() -> None:
    for line in _block("05-values.md", "values"):
        encoded, literal = re.split(r"\s{2,}", line, maxsplit=1)
        value = _literal(literal)
        assert canonical.encode(values.encode(value, where="x")).decode() == encoded
        expected = _ordered(value) if isinstance(value, dict) else value
        assert repr(values.decode(json.loads(encoded), where="x")) == repr(expected)


def _literal(text: str) -> Any:
    special = re.fullmatch(r'float\("(.*)"\)', text)
    return float(special[1]) if special else ast.literal_eval(text)


def _ordered(value: dict[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(value.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def test_refused_values() -> None:
    for line in _block("05-values.md", "values-refused"):
        with pytest.raises(InvalidRecord):
            values.decode(canonical.decode(line.encode(), what="x"), where="x")


def test_digests_of_bytes() -> None:
    for vector in _vectors("vectors-bytes"):
        data = bytes.fromhex(vector["hex"])
        assert digests.digest(data) == _hash(data) == vector["digest"]


def test_digests_of_chunks() -> None:
    for vector in _vectors("vectors-chunk"):
        data = bytes.fromhex(vector["hex"])
        assert _hash(data) == vector["digest"]
        dtype = np.dtype(getattr(ml_dtypes, vector["dtype"], vector["dtype"]))
        numbers = _numbers(vector["values"])
        assert digests.digest(np.array(numbers, dtype)) == vector["digest"]
        assert list(np.array(numbers).shape) == vector["shape"]


def _numbers(text: str) -> Any:
    return [complex(text[1:-1].replace("i", "j"))] if "i" in text else json.loads(text)


def test_dtypes() -> None:
    rows = re.findall(r"^\| (`bool`.*|`int1`.*) \| (.*) \|$", _text(V1 / "06-arrays.md"), re.MULTILINE)
    table = {name: "uint8" if "uint8" in stored else name for names_, stored in rows for name in re.findall(r"`(\w+)`", names_)}
    assert table == {name: dtypes.stored_name(name) for name in dtypes.LOGICAL}


def test_digests_of_array_leaves() -> None:
    for vector in _vectors("vectors-leaf"):
        shape, chunks = vector["shape"], vector["chunks"]
        grid = Grid.irregular(shape, vector["cuts"]) if "cuts" in vector else Grid.regular(shape, vector["chunk_shape"])
        cells = vector["cuts"] if "cuts" in vector else vector["chunk_shape"]
        assert json.loads(vector["text"]) == ["ckpt/leaf", vector["dtype"], shape, cells, chunks]
        assert digests.leaf_digest(vector["dtype"], shape, grid, chunks) == _hash(vector["text"].encode()) == vector["digest"]


def test_digests_of_values_components_and_topologies() -> None:
    for vector in _vectors("vectors-value"):
        assert json.loads(vector["text"]) == ["ckpt/value", vector["encoded"]]
        assert digests.value_digest(vector["encoded"]) == _hash(vector["text"].encode()) == vector["digest"]
    for vector in _vectors("vectors-component"):
        assert json.loads(vector["text"]) == ["ckpt/component", vector["component"], vector["leaves"]]
        found = digests.component_digest(vector["component"], vector["leaves"])
        assert found == _hash(vector["text"].encode()) == vector["digest"]
    for vector in _vectors("vectors-topology"):
        assert json.loads(vector["text"]) == ["ckpt/topology", vector["topology"]]
        raw = dict(vector["topology"], meshes=[records.Mesh(**mesh) for mesh in vector["topology"]["meshes"]])
        assert digests.topology_digest(records.Topology(**raw)) == _hash(vector["text"].encode()) == vector["digest"]


def test_arrays() -> None:
    for line in _block("06-arrays.md", "vectors-array"):
        vector = json.loads(line)
        shape = tuple(vector["shape"])
        grid = Grid.irregular(shape, vector["cuts"]) if "cuts" in vector else Grid.regular(shape, vector["chunk_shape"])
        array = StoredArray(name=vector["name"], dtype=vector["dtype"], shape=shape, grid=grid)
        assert sorted(array.all_keys()) == vector["keys"]
        assert [piece.metadata_bytes.decode() for piece in array.pieces()] == vector["metadata"]


def test_data_cursor() -> None:
    for line in _block("14-data-cursor.md", "vectors-cursor"):
        vector = json.loads(line)
        sampler = Sampler(vector["size"], 1, seed=vector["seed"], shuffle=vector["shuffle"])
        assert sampler.ids(vector["position"], len(vector["ids"])).tolist() == vector["ids"]


def test_digests_of_objects() -> None:
    for vector in _vectors("vectors-object"):
        assert _hash((V1 / vector["file"]).read_bytes()) == vector["digest"]


def _example(name: str) -> bytes:
    return (V1 / "examples" / "valid" / f"{name}.json").read_bytes()


def test_manifest_follows_from_the_receipts() -> None:
    """Proof and derivation (P-35, R-60) applied to the examples give the example manifest, index files and roster."""
    layout = _example("layout/small-model")
    receipts = {rank: _example(f"receipt/rank-{rank}") for rank in (0, 1)}
    values = {rank: _example(f"values/rank-{rank}") for rank in (0, 1)}
    run_id = json.loads(_example("run/fresh"))["run_id"]
    found = prove(run_id, GENERATION, Evidence(receipts, {_hash(layout): layout}, values, {}))
    assert isinstance(found, Proven), found
    assert records.encode(found.manifest) == _example("manifest/two-ranks")
    derived = [_example("roster/two-ranks"), *(_example(f"index/{name}") for name in ("data", "optimizer", "params", "rng"))]
    assert sorted(found.objects.values()) == sorted(derived)
