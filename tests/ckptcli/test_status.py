"""`ckpt status`: ages, costs and troubles of a run, once or again and again, for people, programs and Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcli import status
from ckptcore.errors import StoreUnavailable
from ckptcore.proof import Refuted
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store
from tests.ckptcore.training import train


def test_what_people_see(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10, 20])
    open_run(place / "run").verify(step=10, note=True)
    job = Job(file_store(place / "run"), 3)
    job.open()
    late = job.next_generation(25)
    job.coordinator().abort(late, Refuted("no receipt from rank 1, 2 of 3", (1, 2)))
    job.write(job.next_generation(30), 1)
    lines = dict(line.split("  ", 1) for line in ckpt("status", place / "run").out.splitlines())
    told = {name: text.strip() for name, text in lines.items()}
    assert told["newest committed"].endswith("ago, step 20 (000001-000000000020-1)")
    assert told["newest verified"].endswith("ago, step 10 (000001-000000000010-1)")
    assert told["steps at risk"] == "at least 10"
    assert told["newest save"].startswith("000001-000000000020-1, ")
    assert told["newest save"].endswith("/s")
    assert told["its phases"].startswith("stage ")
    assert ", write " in told["its phases"]
    assert told["of the one before"].startswith("receipt wait ")
    assert " of 2, " in told["slowest rank"]
    assert told["failed saves"] == "1 missing receipt"
    assert told["not yet deleted"] == "nothing"
    assert told["undecided"] == "000002-000000000030-1, no receipt from ranks 0, 2 of 3"


def test_too_old_is_a_no(ckpt: Ckpt, place: Path) -> None:
    train(place, [10], size=1)
    assert ckpt("status", place, "--max-age", "1h", "--json").json["fresh"] is True
    told = ckpt("status", place, "--max-age", "0s", status=1)
    assert "(older than --max-age)" in told.out
    assert ckpt("status", place, "--json").json["fresh"] is None


def test_nothing_to_resume_from_is_too_old(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place), 1).open()
    told = ckpt("status", place, "--max-age", "9d", status=1)
    assert "none: a failure now loses all work" in told.out


def test_again_and_again_whatever_the_store_says(ckpt: Ckpt, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(place, [10], size=1)
    slept: list[float] = []
    looks = 0
    look = status.core.status

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    def unsteady(store: object) -> object:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailable("no answer")
        return look(store)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(status.time, "sleep", sleep)
    monkeypatch.setattr(status.core, "status", unsteady)
    told = ckpt("status", place, "--watch", "5", "--json", status=130)
    assert slept == [5.0] * 3
    assert [json.loads(line)["committed"]["step"] for line in told.out.splitlines()] == [10, 10]
    assert told.error.splitlines()[0] == "ckpt: no answer"


def test_for_prometheus(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10], size=1)
    ckpt("status", place / "run", "--prometheus", place / "ckpt.prom")
    text = (place / "ckpt.prom").read_text()
    assert "# HELP ckpt_newest_commit_step Completed updates in that checkpoint.\n" in text
    assert f'ckpt_newest_commit_step{{run="file://{place}/run"}} 10.0\n' in text


def test_bad_input(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10], size=1)
    assert "there is no run at" in ckpt.refused("status", place, status=5)
    assert "--max-age 'soon': expected a span" in ckpt.refused("status", place / "run", "--max-age", "soon", status=2)
    for watch in ("0", "-1", "nan", "inf", "1e10"):
        told = ckpt.refused("status", place / "run", "--watch", watch, status=2)
        assert f"--watch {float(watch):g}: expected seconds" in told
    assert "does not end in .prom" in ckpt.refused("status", place / "run", "--prometheus", place / "x", status=2)
