"""The minimal reader: it stands alone, reads what others wrote, and tells what is damaged from what is not there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt_conformance import data
from ckpt_conformance.adapters import minimal, minimal_format, minimal_reader
from ckpt_conformance.jobs import damage, notes
from ckpt_conformance.oracle import digests, keys
from ckpt_conformance.oracle.elements import ELEMENTS, logical_bytes
from ckpt_conformance.place import FilePlace, copy_all, open_place
from tests.conformance import runs
from tests.conformance.runs import ABORTED, FIRST, LAST, NEXT, SECOND, THIRD
from tests.servers import s3_server

PARTS = [Path(module.__file__ or "") for module in (minimal, minimal_format, minimal_reader)]
V1 = Path(__file__).parents[2] / "spec" / "v1"
Answer = tuple[int, dict[str, Any]]


@pytest.fixture
def ask(place: FilePlace, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def given(verb: str, **fields: Any) -> Answer:
        request = {"contract": 1, "verb": verb, "store": place.url, "storage": {}, "rank": 0, "processes": 1, **fields}
        status = minimal.main(json.dumps(request))
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    return given


Ask = Callable[..., Answer]


def test_it_imports_nothing_of_ours() -> None:
    own = {path.stem for path in PARTS}
    for path in PARTS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                allowed = {"numpy", "tensorstore", "blake3"} | sys.stdlib_module_names
                assert name.split(".")[0] in allowed or name.removeprefix("ckpt_conformance.adapters.") in own, (path.name, name)


def test_it_can_be_copied(place: FilePlace, tmp_path: Path) -> None:
    """Three files in a folder of their own, in a process that knows nothing of the suite."""
    for path in PARTS:
        (tmp_path / path.name).write_text(
            path.read_text(encoding="utf-8").replace("ckpt_conformance.adapters.", ""), encoding="utf-8"
        )
    request = {"contract": 1, "verb": "verify", "store": place.url, "generation": None, "depth": "deep"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "error", str(tmp_path / "minimal.py")]
    given: dict[str, Any] = {"input": json.dumps(request), "capture_output": True, "text": True, "timeout": 60, "check": False}
    done = subprocess.run(command, **given, env=environment, cwd=tmp_path)  # noqa: PLW1510 - `check` is given
    assert (done.returncode, json.loads(done.stdout)["whole"]) == (0, True), done.stderr


def test_serving(place: FilePlace, tmp_path: Path) -> None:
    """Two requests at once, in processes of their own."""
    orders = []
    for number in (1, 2):
        paths = {name: str(tmp_path / f"{number}.{name}") for name in ("request", "output", "log")}
        Path(paths["request"]).write_text(json.dumps({"verb": "latest", "store": place.url}), encoding="utf-8")
        orders.append({"id": number, **paths, "env": {"X": "y"}})
    command = [sys.executable, "-m", "ckpt_conformance.adapters.minimal", "--serve"]
    given = "".join(json.dumps(order) + "\n" for order in orders)
    environment = {**os.environ, "PYTHONPATH": str(Path(data.__file__).parents[1])}
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False, env=environment)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((line["id"], line["status"]) for line in told if "status" in line) == [(1, 0), (2, 0)]
    assert len({line["pid"] for line in told if "pid" in line}) == 2
    for order in orders:
        assert json.loads(Path(order["output"]).read_text(encoding="utf-8")) == {"generation": LAST, "step": 6}


# Records


def _judged(path: Path) -> str:
    kind = path.parent.name
    try:
        record = minimal_format.decode(path.read_bytes(), "decision" if kind in ("manifest", "abort") else kind, path.name)
    except minimal_format.Refused as error:
        return error.kind
    for component, facts in record["components"].items() if kind == "layout" else ():
        leaves = {leaf["name"]: leaf for leaf in facts["leaves"]}
        sound = [leaf["kind"] == "value" or minimal_format.is_sound(leaf, leaves) for leaf in leaves.values()]
        named = [minimal_format.is_named(component, leaf) for leaf in leaves.values()]
        if not all(sound + named) or [leaf["name"] for leaf in facts["leaves"]] != sorted(leaves):
            return "invalid-record"
    return "valid"


UNREAD = ("attempt-end", "attempt-node", "attempt-plan", "attempt-resumed", "retired", "staged")
"""Kinds of records that a reader does not look into: they are there or not; a supervisor's are no part of a checkpoint."""


def test_examples_are_accepted_and_refused() -> None:
    """But for a failed receipt, which is no part of a checkpoint, and for kinds whose presence is all that counts."""
    valid = {
        f"{path.parent.name}/{path.stem}": _judged(path)
        for path in (V1 / "examples" / "valid").glob("*/*.json")
        if path.parent.name not in UNREAD
    }
    assert {name for name, judged in valid.items() if judged != "valid"} == {"receipt/failed"}
    listed = json.loads((V1 / "examples" / "index.json").read_text(encoding="utf-8"))
    invalid = {
        entry["file"]: _judged(V1 / "examples" / entry["file"]) for entry in listed if entry["file"].split("/")[1] not in UNREAD
    }
    assert {name for name, judged in invalid.items() if judged == "valid"} == set()
    unsupported = {name for name, judged in invalid.items() if judged == "unsupported-format"}
    assert unsupported == {"invalid/run/version-2.json", "invalid/run/requires-unknown.json", "invalid/run/requires-nested.json"}


# What is read


def _leaves(step: int, components: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The target of `runs.rich` on two ranks, as rank 0 has it, and what must come back of its arrays."""
    state, parts = runs.rich(step, 0, 1), []
    expected = {}
    for component in components:
        inner = state[component]
        tree = inner.value if hasattr(inner, "value") else inner
        for name, leaf in tree.items():
            array = getattr(leaf, "local", leaf)
            facts: dict[str, Any] = {"component": component, "path": [["key", name]], "name": f"{component}.{name}"}
            if isinstance(array, np.ndarray):
                facts |= {"dtype": array.dtype.name, "shape": list(array.shape)}
                expected[facts["name"]] = digests.digest(logical_bytes(array, array.dtype.name))
            else:
                facts["value"] = "string"
            parts.append(facts)
    scopes = {component: {"scope": "rank" if component == "rng" else "global"} for component in components}
    return {"components": scopes, "leaves": parts}, expected


def _digests(answer: dict[str, Any]) -> dict[str, str]:
    return {name: leaf["boxes"][0]["digest"] for name, leaf in answer["leaves"].items() if "boxes" in leaf}


def test_every_sort_of_array_and_value_comes_back(ask: Ask) -> None:
    state, expected = _leaves(5, ["params", "extra", "rng"])
    status, answer = ask("restore", mode="read", state=state, generation=NEXT)
    assert status == 0, answer
    assert _digests(answer) == expected
    assert answer["leaves"]["rng.note"] == {"value": "rank 0"}
    dtypes = {"float32", "float64", "int32", "bfloat16", "int4", "float6_e2m3fn", "bool", "complex64", "uint32"}
    assert {leaf["dtype"] for leaf in answer["leaves"].values() if "dtype" in leaf} == dtypes


def test_a_component_by_reference_is_that_of_its_source(ask: Ask) -> None:
    state, expected = _leaves(5, ["params"])
    assert _digests(ask("restore", mode="read", state=state)[1]) == expected
    assert ask("restore", mode="read", state=state)[1]["generation"] == LAST


def test_each_rank_has_its_own(ask: Ask) -> None:
    state, _ = _leaves(5, ["rng"])
    state["leaves"][0]["shapes"] = {"1": [3]}
    answers = [ask("restore", mode="read", state=state, rank=rank)[1]["leaves"] for rank in (0, 1)]
    assert [answer["rng.note"]["value"] for answer in answers] == ["rank 0", "rank 1"]
    assert [answer["rng.key"]["boxes"][0]["stop"] for answer in answers] == [[2], [3]]
    assert ask("restore", mode="read", state=state, rank=2)[1]["error"] == "structure-mismatch"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda leaf: leaf.update(dtype="float64"), "params.w is"),
        (lambda leaf: leaf.update(shape=[8, 97]), "params.w is"),
        (lambda leaf: leaf.update(name="params.v"), "params.v is in the target only; params.w is in the checkpoint only"),
        (lambda leaf: leaf.update(prng_impl="threefry2x32"), "params.w is"),
        (lambda leaf: leaf.update(value="int"), "params.w is"),
        (lambda leaf: leaf.update(component="data"), "params.w is in the checkpoint only"),
    ],
)
def test_nothing_changes_silently(ask: Ask, change: Callable[[Any], None], message: str) -> None:
    state, _ = _leaves(5, ["params"])
    change(next(leaf for leaf in state["leaves"] if leaf["name"] == "params.w"))
    status, answer = ask("restore", mode="read", state=state)
    assert (status, answer["error"]) == (10, "structure-mismatch")
    assert message in answer["message"]


def test_leaves_that_are_one_array_have_one_content(ask: Ask) -> None:
    state, _ = _leaves(5, ["extra"])
    assert ask("restore", mode="read", state=state, generation=NEXT)[0] == 0
    next(leaf for leaf in state["leaves"] if leaf["name"] == "extra.zz")["alias"] = "extra.z"
    status, answer = ask("restore", mode="read", state=state, generation=NEXT)
    assert (status, answer["error"]) == (10, "structure-mismatch")
    assert answer["message"].endswith("(O-12): extra.zz")


def test_what_is_not_offered(ask: Ask) -> None:
    assert [ask("save")[0], ask("restore", mode="resume")[0], ask("restore", mode="read", cast="float32")[0]] == [11, 11, 11]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"generation": FIRST}, "retired"),
        ({"step": 1}, "retired"),
        ({"generation": ABORTED}, "not-found"),
        ({"step": 77}, "not-found"),
        ({"generation": "000009-000000000001-1"}, "not-found"),
        ({"generation": SECOND}, None),
        ({"step": 3}, None),
    ],
)
def test_what_is_named(ask: Ask, named: dict[str, Any], expected: str | None) -> None:
    status, answer = ask("restore", mode="read", state=_leaves(2, ["rng"])[0], **named)
    assert answer.get("error") == expected
    assert status == (10 if expected else 0)


# The head


def test_latest_falls_back_over_what_cannot_be_used(place: FilePlace, ask: Ask) -> None:
    """Newest first, then the base, then its parents; what is quarantined, aborted, retired or unreadable is none of them."""
    assert ask("latest")[1] == {"generation": LAST, "step": 6}
    notes.put_note(place, LAST, "quarantine")
    assert ask("latest")[1] == {"generation": NEXT, "step": 5}
    place.write(keys.decision(NEXT), b"{}")
    assert ask("latest")[1] == {"generation": THIRD, "step": 3}, "the base"
    place.write(keys.decision(THIRD), b"{}")
    assert ask("latest")[1] == {"generation": None, "step": None}, "the second is quarantined, the first is retired"


def test_a_note_that_cannot_be_read_counts_by_its_name(place: FilePlace, ask: Ask) -> None:
    place.write(f"notes/{LAST}/pin-000000000000.json", b"?")
    assert ask("latest")[1]["generation"] == LAST
    place.write(f"notes/{LAST}/quarantine.json.bak", b"?")
    assert ask("latest")[1]["generation"] == LAST
    place.write(f"notes/{LAST}/damaged-000000000000.json", b"?")
    assert ask("latest")[1]["generation"] == NEXT


@pytest.mark.parametrize(("key", "kind"), [(keys.claim(2), "damaged"), (keys.base(2), "damaged")])
def test_without_the_newest_base_there_is_no_head(place: FilePlace, ask: Ask, key: str, kind: str) -> None:
    place.delete(key)
    status, answer = ask("latest")
    assert (status, answer["error"]) == (10, kind)
    assert key in answer["message"]
    assert ask("restore", mode="read", state=_leaves(5, ["rng"])[0], generation=NEXT)[0] == 0, "what is named needs no head"


def test_an_older_base_stops_nobody(place: FilePlace, ask: Ask) -> None:
    place.delete(keys.base(1))
    assert ask("latest")[1]["generation"] == LAST


def test_there_is_no_run(place: FilePlace, ask: Ask) -> None:
    place.delete("run.json")
    assert ask("latest")[1]["error"] == "not-found"


# Damage


FOLDER = keys.folder(NEXT)
NOBODY = "00000000-0000-4000-8000-000000000000"
DAMAGE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "roster": ([{"flip": f"{FOLDER}roster-*"}], "damaged"),
    "index": ([{"truncate": f"{FOLDER}index/rng-*"}], "damaged"),
    "layout": ([{"delete": f"{FOLDER}layouts/*", "first": True}], "damaged"),
    "values": ([{"flip": f"{FOLDER}values/00000.json"}], "damaged"),
    "chunk": ([{"flip": {"chunk": {"array": "params.w", "cell": 0, "generation": NEXT}}}], "damaged"),
    "swapped": (
        [
            {
                "swap": {"chunk": {"array": "params.w", "cell": 0, "generation": NEXT}},
                "with": {"chunk": {"array": "params.w", "cell": 1, "generation": NEXT}},
            }
        ],
        "damaged",
    ),
    "view": ([{"delete": f"{FOLDER}state/manifest.ocdbt"}], "damaged"),
    "file": ([{"truncate": {"chunk": {"array": "params.w", "cell": 0, "generation": NEXT}}}], "damaged"),
    "manifest": ([{"truncate": keys.decision(NEXT)}], "invalid-record"),
    "manifest-of-version-2": ([{"edit": keys.decision(NEXT), "set": {"version": "2.0"}}], "unsupported-format"),
    "manifest-with-a-feature": ([{"edit": keys.decision(NEXT), "set": {"requires": ["x"]}}], "unsupported-format"),
    "manifest-of-another-run": (
        [{"edit": keys.decision(NEXT), "set": {"run_id": NOBODY}}],
        "foreign-record",
    ),
    "manifest-of-another-generation": ([{"swap": keys.decision(NEXT), "with": keys.decision(SECOND)}], "foreign-record"),
    "manifest-of-a-key-elsewhere": ([{"edit": keys.decision(NEXT), "set": {"roster.key": "ledger/x"}}], "invalid-record"),
    "run-of-version-2": ([{"edit": "run.json", "set": {"version": "2.0"}}], "unsupported-format"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_by_its_kind(place: FilePlace, ask: Ask, name: str) -> None:
    ops, kind = DAMAGE[name]
    damage.apply(place, ops)
    state, _ = _leaves(5, ["params", "extra", "rng"])
    status, answer = ask("restore", mode="read", state=state, generation=NEXT)
    assert (status, answer["error"]) == (10, kind), answer
    status, answer = ask("verify", generation=NEXT, depth="deep")
    assert answer.get("whole") is False or answer["error"] == kind


@pytest.mark.parametrize("name", ["roster", "index", "values", "layout", "chunk", "view", "swapped"])
def test_a_reader_falls_back_unless_it_was_asked(place: FilePlace, ask: Ask, name: str) -> None:
    notes.put_note(place, LAST, "quarantine")
    damage.apply(place, DAMAGE[name][0])
    state, expected = _leaves(3, ["params", "rng"])
    status, answer = ask("restore", mode="read", state=state)
    assert (status, answer["generation"], _digests(answer)) == (0, THIRD, expected)


def test_what_was_retired_meanwhile_is_not_called_damaged(place: FilePlace) -> None:
    run = minimal_reader.Run(minimal_format.Store(place.url, {}))
    checkpoint = minimal_reader.Checkpoint(run, NEXT)
    runs.retire(place, NEXT)
    with pytest.raises(minimal_format.Refused) as refused:
        minimal._guarded(run, NEXT, lambda _: [checkpoint.component("params").array("params.w")])
    assert refused.value.kind == "retired"


def test_verification_shallow_and_deep(place: FilePlace, ask: Ask) -> None:
    damage.apply(place, [{"flip": {"chunk": {"array": "params.w", "cell": 0, "generation": NEXT}}}])
    assert ask("verify", generation=NEXT, depth="shallow")[1]["whole"] is True
    deep = ask("verify", generation=NEXT, depth="deep")[1]
    assert deep["whole"] is False
    assert "params.w" in deep["problems"][0]
    by_reference = ask("verify", generation=LAST, depth="deep")[1]
    assert by_reference["whole"] is False, "a component of the last one is in the damaged one"


@pytest.mark.slow
def test_the_same_from_a_bucket(place: FilePlace, capsys: pytest.CaptureFixture[str]) -> None:
    with s3_server() as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        storage = {"endpoint": s3.endpoint, "region": "us-east-1"}
        copy_all(place, open_place(s3.url("run"), storage))
        request = {"verb": "verify", "store": s3.url("run"), "storage": storage, "generation": None, "depth": "deep"}
        assert minimal.main(json.dumps(request)) == 0
        assert json.loads(capsys.readouterr().out) == {"generation": LAST, "whole": True, "problems": []}


def test_it_offers_every_dtype(ask: Ask) -> None:
    assert set(ask("describe")[1]["dtypes"]) == set(ELEMENTS)
    assert {name: element.stored for name, element in ELEMENTS.items()} == minimal_format.STORED


@pytest.mark.parametrize("golden", sorted(path.name for path in data.folder("golden").iterdir() if path.is_dir()))
def test_golden_checkpoints(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = (data.folder("golden") / golden).as_uri()
    assert minimal.main(json.dumps({"verb": "verify", "store": url, "generation": None, "depth": "deep"})) == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
