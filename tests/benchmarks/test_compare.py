"""A whole comparison of fake subjects: rounds, processes, and each way to fail."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, job, measuring, state
from benchmarks.measuring import Plan, Trial
from benchmarks.subject import Mesh

FAKES = "tests.benchmarks.fakes"
TINY = Plan(size="smoke")


def _measured(name: str, processes: Mapping[Mesh, int], folder: Path, plan: Plan = TINY) -> list[dict[str, Any]]:
    return list(Trial(plan, f"{FAKES}:{name}", processes).records(folder / "subject"))


def _run(folder: Path, *arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(argparse.Namespace(**vars(parser.parse_args(arguments)), smoke=True, dir=folder))


def test_one_process_saves_twice_and_others_restore(tmp_path: Path) -> None:
    save, *restores = _measured("Plain", {"one": 1}, tmp_path)
    nbytes = state.nbytes("smoke")
    assert [(one["files"], one["bytes"]) for one in save["saves"]] == [(1, nbytes), (1, nbytes)]
    assert [(one["cache"], one["mesh"]) for one in restores] == [("cold", "one"), ("cached", "one")]
    assert all(one["asked"] >= nbytes and one["seconds"] > 0 for one in restores)
    assert restores[1]["held"] == 1.0


@pytest.mark.slow
def test_several_processes_are_one_operation(tmp_path: Path) -> None:
    records = _measured("Several", {"1d": 4, "2d": 4}, tmp_path, Plan(size="smoke", caches=("cached",)))
    assert [(one["operation"], one["mesh"], one["ranks"]) for one in records] == [
        ("save", "1d", 4),
        ("restore", "1d", 4),
        ("save", "1d", 4),
        ("restore", "2d", 4),
    ]
    assert records[0]["saves"][1]["files"] == 4
    assert records[1]["asked"] >= 4 * state.nbytes("smoke")


def test_what_one_rank_raises_is_the_error_without_paths(tmp_path: Path) -> None:
    (record,) = _measured("Refuses", {"1d": 4}, tmp_path)
    assert record["error"] == "ValueError: no room in …/x"


def test_a_process_that_dies_is_the_error_with_its_last_word(tmp_path: Path) -> None:
    _, cold, cached = _measured("Dies", {"one": 1}, tmp_path)
    assert cold["error"] == "ended with status 7: the last word from …/home"
    assert cached["error"] == cold["error"]


def test_other_bytes_are_an_error(tmp_path: Path) -> None:
    _, cold, _ = _measured("Wrong", {"one": 1}, tmp_path)
    assert cold["error"] == "Different: other bytes"


@pytest.mark.slow
def test_what_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SECONDS", 3.0)
    (record,) = _measured("Deaf", {"one": 1}, tmp_path)
    assert record["error"] == "no answer in 3 s"


@pytest.mark.slow
def test_a_comparison_goes_on_whatever_fails(tmp_path: Path) -> None:
    names = [f"{FAKES}:Plain", f"{FAKES}:Dies", f"{FAKES}:Absent"]
    result = _run(tmp_path, "--only", ",".join(names))
    assert json.loads(json.dumps(result)) == result
    assert result["subjects"][names[2]] == {"error": "ModuleNotFoundError: No module named 'nowhere'"}
    assert result["derived"]["subjects"][names[0]]["save_ratio"]["median"] > 0
    assert "restore_cached_ratio" not in result["derived"]["subjects"][names[1]]
    text = compare.table(result)
    assert f"- {names[2]}: ModuleNotFoundError" in text
    assert result["failed"] == 2
    assert "ended with status 7" in text
    assert str(tmp_path) not in json.dumps(result)
    assert list(tmp_path.iterdir()) == []


def test_without_a_subject_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "describe", lambda name: {"error": f"{name} is not there"})
    monkeypatch.setattr(measuring, "floors", lambda *_: pytest.fail("floors of nothing"))
    result = _run(tmp_path, "--only", "orbax,dcp")
    assert result["failed"] == 2
    for text in (compare.table(result), compare.short(result)):
        assert text == "Nothing was measured.\n\nFailed:\n\n- orbax: orbax is not there\n- dcp: dcp is not there"


@pytest.mark.parametrize("name", ["nosuch.module:Class", f"{FAKES}:Nobody", f"{FAKES}:", ":Plain"])
def test_a_class_that_is_not_there_is_told_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--only", name])
    assert f"argument --only: {name}: " in capsys.readouterr().err


def test_each_round_starts_with_another_subject() -> None:
    assert [compare._rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert compare._rotated([], 1) == []


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--only", "jax,speed"])
    assert "speed: expected some of jax, torch" in capsys.readouterr().err


def test_a_plot_is_of_a_form_that_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    assert parser.parse_args(["--plot", str(tmp_path / "x.png")]).plot == tmp_path / "x.png"
    for name, why in (("x.jpg", "expected .png or .svg"), ("none/x.svg", "there is no folder")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--plot", str(tmp_path / name)])
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /tmp/a-b/c.d/e", "cannot open …/e"),
        ("file:///tmp/x is not there", "file://…/x is not there"),
        ("/x", "…/x"),
        ("1/2 of a/b", "1/2 of a/b"),
        ("first\nsecond", "first"),
    ],
)
def test_no_message_has_a_folder_in_it(text: str, shown: str) -> None:
    assert job.without_paths(text) == shown


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_ours_saves_and_restores_on_another_mesh(name: str, tmp_path: Path) -> None:
    described = measuring.describe(name)
    plan = Plan("smoke", caches=("cached",), others=("2d",))
    records = list(Trial(plan, name, described["processes"]).records(tmp_path / "subject"))
    assert [record.get("error") for record in records] == [None] * 4
    assert [record["mesh"] for record in records] == ["one", "one", "1d", "2d"]


def test_a_smoke_is_of_this_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "describe", lambda name: {"error": f"{name} is not asked"})
    assert list(_run(tmp_path)["subjects"]) == ["jax", "torch"]
