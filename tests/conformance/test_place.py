"""Places: a directory and a bucket show the same objects under the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from ckpt_conformance import data
from ckpt_conformance.place import Place, clear, copy_all, open_place
from tests.servers import S3, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as s3:
        yield s3


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        yield open_place((tmp_path / "a run").as_uri())
        return
    s3: S3 = request.getfixturevalue("server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield open_place(s3.url(tmp_path.name), {"endpoint": s3.endpoint, "region": "us-east-1"})


def test_an_object_is_written_read_and_removed(place: Place) -> None:
    assert place.keys() == []
    assert (place.read("a/b.json"), place.size("a/b.json")) == (None, None)
    place.write("a/b.json", b"12345")
    assert (place.read("a/b.json"), place.size("a/b.json")) == (b"12345", 5)
    place.write("a/b.json", b"")
    assert (place.read("a/b.json"), place.size("a/b.json")) == (b"", 0)
    place.delete("a/b.json")
    place.delete("a/b.json")
    assert place.keys() == []


def test_keys_are_sorted_and_hidden_names_are_none(place: Place) -> None:
    for key in ("b", "a/y/z", "a/x", "a.json", ".hidden", "a/.tmp-1", "c/.git/config"):
        place.write(key, b"x")
    assert place.keys() == ["a.json", "a/x", "a/y/z", "b"]
    assert place.keys("a") == ["a.json", "a/x", "a/y/z"]
    assert place.keys("a/") == ["a/x", "a/y/z"]
    assert place.keys("a/y") == ["a/y/z"]
    assert place.keys("d/") == []


def test_arrays_lie_there_too(place: Place) -> None:
    spec = {"driver": "zarr3", "kvstore": place.kvstore("arrays/w/"), "metadata": {"shape": [2], "data_type": "int8"}}
    ts.open(spec, create=True).result().write(np.array([1, 2], np.int8)).result()
    assert "arrays/w/zarr.json" in place.keys("arrays/")


def test_everything_is_copied(place: Place, tmp_path: Path) -> None:
    objects = {"run.json": b"{}", "ledger/1.json": b"1", "generations/1/x": bytes(range(256))}
    for key, content in objects.items():
        place.write(key, content)
    target = open_place((tmp_path / "copy").as_uri())
    copy_all(place, target)
    assert {key: target.read(key) for key in target.keys("")} == objects


@pytest.mark.slow
def test_everything_below_a_prefix_is_removed(server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    storage = {"endpoint": server.endpoint, "region": "us-east-1"}
    for run in ("suite/mine/1", "suite/mine/2", "suite/mine-too"):
        place = open_place(server.url(run), storage)
        for key in ("ledger/x", "a/.tmp-1"):
            place.write(key, b"x")
    clear(server.url("suite/mine"), storage)
    assert sorted(server.objects("suite/")) == ["mine-too/a/.tmp-1", "mine-too/ledger/x"]


@pytest.mark.parametrize("url", ["/a/b", "gs://bucket/run", "s3:///run", "file://host/run", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        open_place(url)


def test_links_are_not_followed_into_other_folders(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    assert open_place((tmp_path / "run").as_uri()).keys() == []


def test_data_folders() -> None:
    assert (data.folder("schema") / "run.json").is_file()
    assert data.folder("scenarios").is_dir()
    with pytest.raises(FileNotFoundError, match="no folder 'nothing'"):
        data.folder("nothing")
