"""Failpoints: each is at its moment, by what the store then holds, and the process really dies, stops or fails there."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.adapters.answers import Cannot
from ckpt_conformance.adapters.failpoints import MOMENTS, FailingStore, Failpoint, failing
from ckptcore import names
from ckptcore.errors import StoreError
from ckptcore.names import GenerationId
from ckptcore.store import open_store
from tests.conformance.jobs import DONE, exact, files_of, served

KILLED = -signal.SIGKILL
FIRST, SECOND = "000001-000000000001-1", "000002-000000000002-1"
RECEIPTS = ["receipts/00000.json", "receipts/00001.json"]


def failpoint(name: str, action: str = "kill", rank: int = 0, step: int | None = 2) -> dict[str, Any]:
    return {"name": name, "rank": rank, "action": action, "step": step}


def saving(name: str, run: Path, step: int, **fields: Any) -> Any:
    """A job of two ranks. Where rank 1 dies, its receipt never comes, and is waited for in vain; else it may take its time."""
    point = fields.get("failpoint")
    limit = 2 if isinstance(point, dict) and (point["rank"], point["action"]) == (1, "kill") else 30
    saves = [{"step": step}]
    told = {"store": run.as_uri(), "state": exact(), "saves": saves, "resume": "head", "deadline": limit, **fields}
    return served(name).start("save", 2, **told)


def kinds(run: Path, generation: str = SECOND) -> set[str]:
    """The kinds of files of a generation: the first part of each key, without digests."""
    return {key.partition("/")[0].partition("-")[0] for key in files_of(run, generation)}


def own(run: Path, rank: int) -> list[str]:
    """What a rank has stored by itself."""
    marks = (f"receipts/{rank:05d}", f"values/{rank:05d}", f"state/ranks/{rank:05d}")
    return [key for key in files_of(run, SECOND) if key.startswith(marks)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one commit."""
    folder = tmp_path / "run"
    assert [ended.status for ended in saving("jax", folder, 1).wait()] == [DONE, DONE]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["before-data", "during-data", "before-receipt", "after-receipt"])
def test_a_rank_dies_while_it_delivers(run: Path, name: str, rank: int) -> None:
    ended = saving("jax", run, 2, failpoint=failpoint(name, rank=rank)).wait()
    assert ended[rank].status == KILLED
    stored, receipt = own(run, rank), RECEIPTS[rank]
    assert (receipt in stored) == (name == "after-receipt")
    assert RECEIPTS[1 - rank] in files_of(run, SECOND)  # the others deliver first
    if name == "before-data":
        assert stored == []
    elif name == "during-data":
        assert stored
        assert not [key for key in stored if key.endswith("manifest.ocdbt") or not key.startswith("state/")]
    else:
        assert [key for key in stored if key.endswith("manifest.ocdbt")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["before-index", "before-merge", "before-fence", "before-decision", "after-decision"])
def test_the_coordinator_dies_while_it_decides(run: Path, name: str) -> None:
    ended = saving("jax", run, 2, failpoint=failpoint(name)).wait()
    assert ended[0].status == KILLED
    keys = files_of(run, SECOND)
    assert set(RECEIPTS) <= set(keys)
    assert ("index" in kinds(run)) == (name != "before-index")
    assert ("roster" in kinds(run)) == (name != "before-index")
    assert ("state/manifest.ocdbt" in keys) == (name not in ("before-index", "before-merge"))
    assert (run / "ledger" / f"{SECOND}.json").exists() == (name == "after-decision")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["after-claim", "during-settle", "before-base"])
def test_an_opener_dies(run: Path, name: str) -> None:
    saving("jax", run, 2, failpoint=failpoint("before-index")).wait()
    (ended,) = served("jax").run("recover", store=run.as_uri(), failpoint=failpoint(name, step=None))
    assert ended.status == KILLED
    assert (run / "incarnations" / "000003" / "claim.json").exists()
    assert not (run / "incarnations" / "000003" / "base.json").exists()
    assert (run / "ledger" / f"{SECOND}.json").exists() == (name != "after-claim")


@pytest.mark.slow
def test_no_moment_of_a_save_comes_while_older_saves_are_settled(run: Path) -> None:
    saving("jax", run, 2, failpoint=failpoint("before-index")).wait()
    ended = saving("jax", run, 2, failpoint=failpoint("before-decision")).wait()
    assert ended[0].status == KILLED
    assert (run / "ledger" / f"{SECOND}.json").exists(), "what was left was settled"
    assert not (run / "ledger" / "000003-000000000002-1.json").exists(), "the job's own save was not decided"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["after-staged", "on-nodes", "during-upload"])
def test_a_rank_dies_with_its_data_on_its_node(run: Path, tmp_path: Path, name: str, rank: int) -> None:
    if (name, rank) == ("on-nodes", 1):
        pytest.skip("that is said by rank 0")
    job = saving("jax", run, 2, failpoint=failpoint(name, rank=rank), local=str(tmp_path / "node"))
    assert job.wait()[rank].status == KILLED
    keys = files_of(run, SECOND)
    assert {"staged/00000.json", "staged/00001.json", RECEIPTS[1 - rank]} <= set(keys)
    assert RECEIPTS[rank] not in keys
    assert (run / "ledger" / f"{SECOND}.staged.json").exists() == ((name, rank) != ("after-staged", 0))
    uploaded = [key for key in keys if key.startswith(f"state/ranks/{rank:05d}")]
    assert bool(uploaded) == (name == "during-upload")
    assert not [key for key in uploaded if key.endswith("manifest.ocdbt")]


@pytest.mark.slow
def test_a_rank_stops_with_the_files_of_a_copy(run: Path, tmp_path: Path) -> None:
    points = [failpoint("during-copy", "stop"), failpoint("during-upload", "hold", rank=1)]
    job = saving("jax", run, 2, nodes=[tmp_path / "a", tmp_path / "b"], copies=1, failpoint=points, deadline=60)
    job.wait_until_stopped(0)
    (node,) = (folder.parent for folder in (tmp_path / "a").rglob("generations"))
    there = files_of(node, SECOND)
    assert [key for key in there if key.startswith("receipts/")] == RECEIPTS[:1]
    assert any(key.startswith("state/ranks/00001") and key.endswith("manifest.ocdbt") for key in there)
    keys = files_of(run, SECOND)
    assert RECEIPTS[0] in keys, "its own part is uploaded"
    assert RECEIPTS[1] not in keys
    assert not (run / "ledger" / f"{SECOND}.json").exists()
    for rank in (0, 1):
        job.let_go(rank)
    assert [ended.status for ended in job.wait()] == [DONE, DONE]
    assert (run / "ledger" / f"{SECOND}.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["after-retired", "during-delete"])
def test_a_collector_dies(run: Path, name: str) -> None:
    saves = [{"step": step} for step in (2, 3)]
    served("jax").done("save", 2, store=run.as_uri(), state=exact(), saves=saves, resume="head")
    served("jax").done("recover", store=run.as_uri())  # from here on nobody has started from the first
    before = files_of(run, FIRST)
    keep = {"last": 2, "every": None}
    (ended,) = served("jax").run("collect", store=run.as_uri(), keep=keep, failpoint=failpoint(name, step=None))
    assert ended.status == KILLED
    assert (run / "ledger" / f"{FIRST}.retired.json").exists()
    left = files_of(run, FIRST)
    assert left == before if name == "after-retired" else 0 < len(left) < len(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_rank_that_was_stopped_goes_on(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    job = saving(name, run, 1, failpoint=failpoint("during-data", "stop", rank=1, step=1))
    job.wait_until_stopped(1)
    assert not [key for key in files_of(run, FIRST) if key.startswith("state/ranks/00001") and key.endswith("manifest.ocdbt")]
    job.let_go(1)
    ended = job.wait()
    assert [process.answer["saves"][0]["outcome"] for process in ended] == ["committed"] * 2
    (whole,) = served(name).done("verify", store=run.as_uri(), depth="deep")
    assert whole["whole"], whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_coordinator_that_was_stopped_finds_out_that_it_is_superseded(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    job = saving(name, run, 1, failpoint=failpoint("before-fence", "stop", step=1))
    job.wait_until_stopped(0)
    (settled,) = served(name).done("recover", store=run.as_uri())
    assert settled["settled"] == [{"generation": FIRST, "decision": "commit"}]
    job.let_go(0)
    ended = job.wait()
    assert ended[0].answer["saves"][0]["outcome"] == "superseded"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_rank_whose_disk_fails_says_so(tmp_path: Path, name: str, rank: int) -> None:
    job = saving(name, tmp_path / "run", 1, failpoint=failpoint("during-data", "error", rank=rank, step=1))
    outcomes = [process.answer["saves"][0]["outcome"] for process in job.wait()]
    assert outcomes == (["failed", "aborted"] if rank == 0 else ["aborted", "failed"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_whoever_is_left_without_rank_zero_ends(tmp_path: Path, name: str) -> None:
    ended = saving(name, tmp_path / "run", 1, failpoint=failpoint("before-receipt", step=1)).wait()
    assert ended[0].status == KILLED
    assert ended[1].status in (-signal.SIGABRT, KILLED)


def test_a_moment_comes_once(tmp_path: Path) -> None:
    store = failing(open_store(tmp_path), Failpoint(name="before-base", rank=0, action="error"), rank=0, processes=1)
    with pytest.raises(StoreError, match="injected"):
        store.put_if_absent(names.base_key(1), b"{}")
    assert store.put_if_absent(names.base_key(1), b"{}") == b"{}"


def test_only_the_rank_that_is_named_fails(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert failing(store, Failpoint(name="before-base", rank=1, action="error"), rank=0, processes=2) is store
    assert failing(store, None, rank=0, processes=2) is store


def test_only_the_save_that_is_named_fails(tmp_path: Path) -> None:
    store = FailingStore(open_store(tmp_path), Failpoint(name="before-receipt", rank=0, action="error", step=2), 1)
    data = b'{"status":"complete"}'
    for other in (GenerationId(1, 1, 1), GenerationId(1, 3, 1)):
        assert store.put_if_absent(names.receipt_key(other, 0), data) == data
    assert store.put_if_absent(names.receipt_key(GenerationId(1, 2, 1), 1), data) == data
    with pytest.raises(StoreError, match="injected"):
        store.put_if_absent(names.receipt_key(GenerationId(1, 2, 1), 0), data)


def test_an_unknown_failpoint_is_not_offered() -> None:
    assert Failpoint.of(None, 0) is None
    for told in ({"name": "at-noon", "rank": 0, "action": "kill"}, {"name": "before-data", "rank": 0, "action": "pause"}):
        for rank in (0, 1):
            with pytest.raises(Cannot):
                Failpoint.of(told, rank)
    assert len(MOMENTS) == 18


def test_each_rank_has_its_own_of_several() -> None:
    told = [failpoint("during-copy", "stop", rank=0), failpoint("during-upload", "hold", rank=1)]
    found = [Failpoint.of(told, rank) for rank in range(3)]
    assert [point and point.name for point in found] == ["during-copy", "during-upload", None]
    assert found[0] == Failpoint.of(told[0], 0)


def test_what_is_held_goes_on_when_the_process_is_told_to(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGCONT)
    point = Failpoint(name="before-base", rank=0, action="hold")
    store = failing(open_store(tmp_path), point, rank=0, processes=1)
    try:
        held = threading.Thread(target=store.put_if_absent, args=(names.base_key(1), b"{}"), daemon=True)
        held.start()
        assert store.put_if_absent(names.claim_key(1), b"{}") == b"{}", "all else goes on"
        assert store.get(names.base_key(1)) is None
        signal.raise_signal(signal.SIGCONT)
        held.join(30)
        assert store.get(names.base_key(1)) == b"{}"
    finally:
        point.released.set()
        signal.signal(signal.SIGCONT, before)


def test_a_copy_on_a_node_is_told_from_what_is_in_the_store(tmp_path: Path) -> None:
    point, data = Failpoint(name="during-copy", rank=0, action="error", step=2), b'{"status":"complete"}'
    run, generation = open_store(tmp_path / "run"), GenerationId(1, 2, 1)
    node = FailingStore(open_store(tmp_path / "node"), point, 2, run)
    assert FailingStore(run, point, 2).put_if_absent(names.receipt_key(generation, 1), data) == data
    assert node.put_if_absent(names.receipt_key(generation, 0), data) == data, "its own part"
    with pytest.raises(StoreError, match="injected"):
        node.put_if_absent(names.receipt_key(generation, 1), data)
