"""What makes no sense on the command line is said before a run, not after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.__main__ import main
from ckpt_conformance.asked import Asked, CallError, check, check_only
from ckpt_conformance.cases.scenario import cases

IS_ROOT = os.geteuid() == 0
TABLE = {"title": "t", "why": "w", "clauses": ["P-1"], "steps": [{"do": "latest", "expect": {"exit": "done"}}]}


def asked(**rest: Any) -> Asked:
    return Asked(adapter="toy", **rest)


def refused(said: Asked) -> str:
    with pytest.raises(CallError) as error:
        check(said)
    return str(error.value)


@pytest.mark.parametrize("report", ["json", "junit", "html"])
def test_where_a_report_cannot_be_written(tmp_path: Path, report: str) -> None:
    assert refused(asked(**{report: tmp_path})) == f"--{report} {tmp_path}: a folder, and not a file"
    missing = tmp_path / "no" / "x"
    assert refused(asked(**{report: missing})) == f"--{report} {missing}: there is no folder {missing.parent}"
    check(asked(**{report: tmp_path / "x"}))
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(IS_ROOT, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert refused(asked(json=tmp_path / "x")).endswith("cannot be written")


def test_permission_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path and mode == os.W_OK))
    assert refused(asked(json=tmp_path / "x")).endswith("cannot be written")
    assert refused(asked(dir=tmp_path)).endswith("cannot be written")


def test_two_reports_in_one_file(tmp_path: Path) -> None:
    assert "the same file" in refused(asked(json=tmp_path / "x", html=tmp_path / "x"))


def test_the_folder_of_what_is_kept_is_new_or_empty(tmp_path: Path) -> None:
    check(asked(dir=tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    check(asked(dir=tmp_path / "a" / "b"))
    assert "not empty" in refused(asked(dir=tmp_path / "a"))
    (tmp_path / "file").write_text("x")
    assert refused(asked(dir=tmp_path / "file")).startswith(f"--dir {tmp_path / 'file'}: ")
    assert refused(asked(dir=tmp_path / "file" / "below")).startswith("--dir ")


@pytest.mark.parametrize("store", ["s3://", "s3:bucket", "s3:///prefix", "gs://bucket", "here"])
def test_stores_that_are_none(store: str) -> None:
    assert refused(asked(store=store)) == f"--store {store}: expected file, or s3://bucket/prefix"


def test_an_adapter_is_not_crossed_with_itself() -> None:
    assert "the same adapter" in refused(asked(cross="toy"))
    assert "the same adapter" in refused(asked(cross=" 'toy'  "))
    check(asked(cross="toy --other"))


def test_known_failures_that_are_not_there(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(asked(expected=tmp_path / "x"))


def test_every_id_chooses_something() -> None:
    found = cases("f/x", {**TABLE, "cases": {"a": {"quick": True}, "b": {}}, "stores": ["file"]})
    check_only(asked(only=["f/x.a", "*.b", "f/"]), found)
    for only, more, message in (
        (["f/x.a", "f/y"], {}, "--only f/y: there is no such case"),
        (["f/x.a", "f/x.b"], {"quick": True}, "--only f/x.b: no such case is in the quick subset"),
        (["f/x.a"], {"store": "s3://bucket"}, "--only f/x.a: no such case"),
    ):
        with pytest.raises(CallError) as error:
            check_only(asked(only=only, **more), found)
        assert message in str(error.value)


@pytest.mark.parametrize("option", ["--adapter", "--cross"])
def test_a_second_adapter_is_refused_where_it_would_replace_the_first(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--adapter", "jax", "--cross", "torch", option, "minimal", "--only", "nothing/at-all"])
    assert ended.value.code == 2
    assert f"{option} is given twice: --adapter takes one adapter, and --cross a second one" in capsys.readouterr().err
