"""Which runs lie below a prefix: folders of any name, nothing through links, nothing hidden; in object stores by the listing."""

from __future__ import annotations

from pathlib import Path

import tensorstore as ts

from ckptcore.inspect.runs import find_runs
from ckptcore.store import Storage, open_store
from tests.ckptcore.supervised import never_begun
from tests.ckptcore.support import file_store


def run_at(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").touch()


def found(top: Path) -> list[str]:
    url = file_store(top).url
    return [place.url.removeprefix(url) for place in find_runs(file_store(top))]


def test_folders_of_any_name(tmp_path: Path) -> None:
    for name in ("run 42", "lr=0.1,bs=2", "ü", "a/b", "a/b/inner", "d/e/p/t/h"):
        run_at(tmp_path / name)
    assert found(tmp_path) == ["/a/b", "/lr%3D0.1%2Cbs%3D2", "/run%2042", "/%C3%BC"]
    for place in find_runs(file_store(tmp_path)):
        assert open_store(place.url).get("run.json") == b""


def test_the_run_itself(tmp_path: Path) -> None:
    run_at(tmp_path / "run")
    assert found(tmp_path / "run") == [""]
    assert found(tmp_path / "nowhere") == []


def test_no_link_is_followed_and_nothing_hidden_shown(tmp_path: Path) -> None:
    run_at(tmp_path / "runs" / "good")
    run_at(tmp_path / "runs" / ".snapshot" / "good")
    (tmp_path / "runs" / "latest").symlink_to("good")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path)
    assert found(tmp_path / "runs") == ["/good"]


def test_in_an_object_store() -> None:
    storage = Storage(context=ts.Context())
    top = open_store("memory://runs", storage)
    for run in ("run 42", "lr=0.1,bs=2", "ü", "a/b", "a/b/inner", "d/e/p/t/h", ".hidden"):
        open_store(f"memory://runs/{run}", storage).put_if_absent("run.json", b"x")
    urls = [place.url for place in find_runs(top)]
    assert urls == [f"memory://runs/{run}" for run in ("a/b", "lr=0.1,bs=2", "run 42", "ü")]
    assert [open_store(url, storage).get("run.json") for url in urls] == [b"x"] * 4
    assert [place.url for place in find_runs(open_store("memory://runs/a/b", storage))] == ["memory://runs/a/b"]


def test_a_place_where_only_a_supervisor_has_been_hides_no_run(tmp_path: Path) -> None:
    for name in ("above", "above/empty", "above/good"):
        never_begun(tmp_path / name)
    (tmp_path / "above" / "good" / "run.json").touch()
    run_at(tmp_path / "other" / "supervision")
    (tmp_path / "plain" / "supervision" / "00000001").mkdir(parents=True)
    url = file_store(tmp_path).url
    places = {place.url.removeprefix(url): place.begun for place in find_runs(file_store(tmp_path))}
    assert places == {"/above": False, "/above/empty": False, "/above/good": True, "/other/supervision": True}


def test_the_same_in_an_object_store() -> None:
    storage = Storage(context=ts.Context())
    for key in ("above/supervision/00000001/plan.json", "above/good/run.json", "above/good/supervision/00000001/plan.json"):
        open_store("memory://runs", storage).put_if_absent(key, b"x")
    top = open_store("memory://runs", storage)
    assert [(place.url, place.begun) for place in find_runs(top)] == [
        ("memory://runs/above", False),
        ("memory://runs/above/good", True),
    ]
    inside = open_store("memory://runs/above", storage)
    assert [(place.url, place.begun) for place in find_runs(inside)] == [
        ("memory://runs/above", False),
        ("memory://runs/above/good", True),
    ]
