"""Reading a run beside a live job: it sees commits alone, changes nothing, and never gives damaged bytes."""

from __future__ import annotations

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ckptcore
from ckptcore.errors import CallError, Damaged, DeadlineExceeded, ForkRequired, NotFound
from jaxckpt import Event, Keep, open_run
from tests.jaxckpt.runs import assert_same, checkpointer, resume, save


def state(number: int) -> dict[str, object]:
    return {"x": jnp.full(1000, number, jnp.float32), "n": number}


def files(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def flip_a_bit(directory: Path, step: int) -> None:
    """Damage the largest array file of a generation."""
    found = [path for path in directory.glob(f"generations/*-{step:012d}-*/state/ranks/*/d/*") if path.is_file()]
    largest = max(found, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def test_nothing_but_a_run_is_opened(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no run at"):
        open_run(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_reader_beside_a_live_job(tmp_path: Path) -> None:
    url = tmp_path / "run"
    seen: list[tuple[str, int]] = []

    def look(event: Event) -> None:
        """Look from inside the save, when its arrays are written and when it is committed."""
        if event.kind in ("written", "committed") and event.generation is not None:
            head = ckptcore.open_run(url).head()
            seen.append((event.kind, head.step if head else 0))

    with checkpointer(url, on_event=look) as saver:
        for step in (1, 2):
            saver.save(step, {"params": state(step)}).result(30)
        before = files(url)
        run = open_run(url)
        assert_same(run.restore(like=state(0), components="params"), state(2))
        assert_same(run.restore(like=state(0), components="params", step=1), state(1))
        assert run.verify(deep=True).ok
        assert [known.state for known in run.generations()] == ["committed", "committed"]
        assert files(url) == before
        saver.save(3, {"params": state(3)}).result(30)
        assert_same(run.restore(like=state(0), components="params"), state(3))
    assert seen == [("written", 0), ("committed", 1), ("written", 1), ("committed", 2), ("written", 2), ("committed", 3)]


def test_following_commits(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver:
        saver.save(1, {"params": state(1)}).result(30)
        follower = open_run(tmp_path / "run").follow(after="000001-000000000001-1", timeout=0.2)
        saver.save(2, {"params": state(2)})
        saver.save(3, {"params": state(3)}).result(30)
    assert [next(follower).step, next(follower).step] == [2, 3]
    with pytest.raises(DeadlineExceeded, match=r"has no new commit after 0\.2 s"):
        next(follower)


def test_a_damaged_head_is_never_given_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = tmp_path / "run"
    with checkpointer(url) as saver:
        for step in (1, 2):
            saver.save(step, {"params": state(step)})
    flip_a_bit(url, 2)
    run = open_run(url)
    with pytest.raises(Damaged, match=r"array 'params\.x'"):
        run.restore(like=state(0), components="params", step=2)
    assert_same(run.restore(like=state(0), components="params"), state(1))
    assert "falling back" in caplog.text
    assert not run.verify(step=2, deep=True).ok
    assert run.verify(step=1, deep=True).ok
    restored = resume(url, {"params": state(0)})
    assert (restored.step, restored.reason) == (1, "fallen-back")
    assert_same(restored.components["params"], state(1))


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    url = tmp_path / "run"
    with checkpointer(url) as saver:
        for step in (1, 2):
            saver.save(step, {"params": state(step)})
    for step in (1, 2):
        flip_a_bit(url, step)
    with pytest.raises(NotFound, match=r"no checkpoint that can be read(.|\n)*params\.x(.|\n)*params\.x"):
        open_run(url).restore(components="params")
    with pytest.raises(Damaged, match=r"checkpoints can be resumed from .*params\.x.*Nothing was changed"):
        resume(url, {"params": state(0)})


@pytest.mark.parametrize(
    "victim", ["state/ranks/*/d/*", "state/ranks/*/manifest.ocdbt", "state/manifest.ocdbt", "values/*", "index/*", "receipts/*"]
)
@pytest.mark.parametrize("harm", ["removed", "truncated"])
def test_a_lost_file_means_the_checkpoint_before(victim: str, harm: str, tmp_path: Path) -> None:
    url = tmp_path / "run"
    with checkpointer(url) as saver:
        for step in (1, 2):
            saver.save(step, {"params": state(step)})
    for path in url.glob(f"generations/*-{2:012d}-*/{victim}"):
        if harm == "removed":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
    restored = resume(url, {"params": state(0)})
    assert (restored.step, restored.reason) == (1, "fallen-back")
    assert_same(restored.components["params"], state(1))


def test_retention_and_what_it_leaves(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run", keep=Keep(last=2)) as saver:
        for step in range(1, 6):
            handle = saver.save(step, {"params": state(step)})
            handle.result(30)
            if step == 2:
                saver.annotate(handle.generation, tags=["good"])
    run = open_run(tmp_path / "run")
    assert [known.id.step for known in run.generations() if known.state == "committed"] == [2, 4, 5]
    assert_same(run.restore(like=state(0), components="params", step=2), state(2))
    assert sorted(path.name[7:19] for path in (tmp_path / "run" / "generations").iterdir()) == [
        f"{step:012d}" for step in (2, 4, 5)
    ]


def test_weights_alone_start_a_new_run(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    save(parent, {"params": state(7), "optimizer": {"m": np.ones(3)}}, step=40)
    with checkpointer(parent) as saver, pytest.raises(ForkRequired, match=r"that is a new run, not a continuation.*start_from="):
        saver.restore(like={"optimizer": {"m": np.zeros(3)}}, accept_guarantee="weights")
    fresh = {"params": state(0), "optimizer": {"m": np.zeros(3)}}
    with checkpointer(child, start_from=parent) as saver:
        begun = saver.restore_or_init(lambda: fresh, like=fresh)
        assert begun.reason is not None
        assert "forked from generation" in begun.reason
        assert_same(begun.components["params"], state(7))
        saver.save(begun.step + 1, {"params": state(8), "optimizer": {"m": np.ones(3)}})
    with checkpointer(child, start_from=parent) as saver:
        again = saver.restore_or_init(lambda: fresh, like=fresh)
    assert_same(again.components["params"], state(8))


def test_forking_a_whole_run(tmp_path: Path) -> None:
    save(tmp_path / "parent", {"params": state(7)}, step=40)
    open_run(tmp_path / "parent").fork(tmp_path / "child")
    with pytest.raises(CallError, match="holds a run already"):
        open_run(tmp_path / "parent").fork(tmp_path / "child")
    with checkpointer(tmp_path / "child") as saver:
        begun = saver.restore_or_init(dict, like={"params": state(0)})
        assert begun.step == 40
        assert_same(begun.components["params"], state(7))
