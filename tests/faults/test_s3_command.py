"""`ckpt` against an S3 server: a run is copied there, finished, collected and rolled back there, and copied back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.names import GenerationId
from ckptcore.store import open_store
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, check_commits, file_store
from tests.servers import S3

pytestmark = pytest.mark.slow


@pytest.fixture
def ckpt(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, s3: S3) -> Ckpt:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CKPT_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("CKPT_REGION", "us-east-1")
    return Ckpt(capfd)


def test_copies(ckpt: Ckpt, s3: S3, tmp_path: Path) -> None:
    job = Job(file_store(tmp_path / "run"))
    job.open()
    job.save(10)
    job.save(20)
    made = ckpt("cp", tmp_path / "run", s3.url("copy"), "10", "--json").json
    assert made["target"] == s3.url("copy")
    assert len(ckpt("mirror", tmp_path / "run", s3.url("copy"), "--json").json["copied"]) == 1
    assert ckpt("mirror", s3.url("copy"), tmp_path / "back", "--json").json["failed"] == []
    assert check_commits(file_store(tmp_path / "back")) == check_commits(job.store)
    assert ckpt("cp", tmp_path / "run", s3.url("copy"), "10", "--json").json["copied"][0]["sent"] == 0


def test_recover_collect_and_roll_back(ckpt: Ckpt, s3: S3) -> None:
    url = s3.url("changed")
    store = open_store(url, s3.storage)
    job = Job(store)
    job.open()
    for step in (10, 20, 30):
        job.save(step)
    left = job.next_generation(40)
    for rank in (0, 1):
        job.write(left, rank)
    assert ckpt("recover", url, "--apply", "--json").json["generations"][0]["outcome"] == "committed"
    made = ckpt("gc", url, "--keep-last", "3", "--apply", "--json").json
    assert [row["bytes"] > 0 for row in made["deleted"]] == [True]
    assert [generation.step for generation in stored(store)] == [20, 30, 40]
    assert ckpt("rollback", url, "--to", "20", "--apply", "--json").json["strays"] == [str(left), "000001-000000000030-1"]
    head = History.load(store).head()
    assert head is not None
    assert head.generation == GenerationId(1, 20, 1)
