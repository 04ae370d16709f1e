"""Jobs of two processes: what they save, restore and survive together."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptcore.errors import GuaranteeError, NotFound
from jaxckpt import PerRank, RankZero, Sampler, open_run
from tests.jaxckpt.plain import restored_without_jax
from tests.jaxckpt.procs import Job, run_job
from tests.jaxckpt.runs import assert_same, checkpointer, resume, save
from tests.spec.checker import check_run

pytestmark = pytest.mark.slow

HOST = np.arange(1024, dtype=np.float32).reshape(32, 32)

STATE = """
import os, signal
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxckpt import PerRank, RankZero, Sampler, host_rng_state
from tests.jaxckpt.runs import assert_same, checkpointer

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
HOST = np.arange(1024, dtype=np.float32).reshape(32, 32)


def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def state(offset=0):
    everywhere = jax.jit(lambda: 0.5, out_shardings=NamedSharding(mesh, P()))()
    keys = jax.jit(lambda: jax.random.split(jax.random.key(offset), 8), out_shardings=NamedSharding(mesh, P("data")))()
    return {
        "both": put(HOST + offset, "data", "model"),
        "columns": put((HOST + offset).astype(jnp.bfloat16), None, "model"),
        "rows": put(HOST + offset, "data"),
        "replicated": put(HOST[:2] + offset),
        "keys": keys,
        "weak": everywhere,
        "zero": put(np.zeros((0, 4), np.int8)),
        "local": jnp.arange(3) + offset,
        "host": np.arange(5.0) + offset,
        "count": 3 + offset,
        "none": None,
    }


def own(offset=0):
    # The structure differs: rank 1 has one more leaf.
    return {"cursor": RANK * 10 + offset, "seen": np.arange(2 + RANK), **({"extra": [jnp.ones(2)]} if RANK else {})}


def components(offset=0):
    return {
        "params": state(offset),
        "own": PerRank(own(offset)),
        "log": RankZero({"text": f"from rank {RANK}", "host": np.full(2, RANK)}),
        "data": Sampler(100, 10),
    }
"""

SAVE = (
    STATE
    + """
with checkpointer(ARGS[0], chunk_bytes=1024) as saver:
    for step in (1, 2):
        saver.save(step, components(step)).result(60)
"""
)

RESTORE = (
    STATE
    + """
from collections import Counter
from ckptcore.array_reader import ArrayReader

reads = Counter()
located = ArrayReader._located


def counted(self, chunks):
    reads.update(chunk.key for chunk in chunks if "/c/" in chunk.key)
    return located(self, chunks)


ArrayReader._located = counted
with checkpointer(ARGS[0], chunk_bytes=1024) as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=components())
    step = restored.step
    assert_same(restored.components["params"], state(step))
    assert_same(restored.components["own"].value, own(step))
    assert restored.components["log"].value["text"] == "from rank 0"
    both = [key for key in reads if key.startswith("params.both/")]
    print("chunks of both:", len(both), "times:", *set(reads.values()))
    print("restored:", step, restored.reason, restored.guarantee)
    saver.save(step + 1, components(step + 1)).result(60)
"""
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that two processes of two devices saved, and resumed on the same topology. Not to be changed."""
    url = tmp_path_factory.mktemp("two") / "run"
    run_job(SAVE, args=[str(url)])
    for output in run_job(RESTORE, args=[str(url)]):
        assert "restored: 2 newest exact" in output
        # Half of the array lies on this rank, in chunks of 1024 bytes; every chunk was read once.
        assert "chunks of both: 2 times: 1" in output
    return url


def test_the_records_are_those_of_the_specification(saved: Path) -> None:
    assert check_run(saved) == []
    assert open_run(saved).verify(deep=True).ok
    assert len(restored_without_jax(saved)) == 2


def like_of_one(mesh: Mesh) -> dict[str, object]:
    """The state's global arrays over the four devices of one process, laid out otherwise."""

    def place(shape: tuple[int, ...], dtype: object, *spec: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    return {
        "both": place((32, 32), jnp.float32, ("model", "data")),
        "columns": place((32, 32), jnp.bfloat16, "model"),
        "rows": place((32, 32), jnp.float32),
        "replicated": place((2, 32), jnp.float32, None, "data"),
        "keys": place((8,), jax.random.key(0).dtype, "model"),
        "weak": place((), jnp.float32),
        "zero": place((0, 4), jnp.int8),
        "local": place((3,), jnp.int32),
        "host": np.zeros(5),
        "count": 0,
        "none": None,
    }


def test_one_process_reads_what_two_saved(saved: Path, mesh: Mesh) -> None:
    restored = open_run(saved).restore(like=like_of_one(mesh), components="params", step=3)
    assert_same(restored["both"], jax.device_put(HOST + 3, NamedSharding(mesh, PartitionSpec(("model", "data")))))
    assert_same(restored["columns"], jax.device_put((HOST + 3).astype(jnp.bfloat16), NamedSharding(mesh, PartitionSpec("model"))))
    np.testing.assert_array_equal(restored["rows"], HOST + 3)
    np.testing.assert_array_equal(restored["replicated"], HOST[:2] + 3)
    np.testing.assert_array_equal(
        jax.random.key_data(restored["keys"]), jax.random.key_data(jax.random.split(jax.random.key(3), 8))
    )
    assert restored["weak"].weak_type
    assert (restored["local"].tolist(), restored["host"].tolist(), restored["count"]) == ([3, 4, 5], [3.0, 4.0, 5.0, 6.0, 7.0], 6)


def test_rank_scoped_state_is_read_by_rank(saved: Path) -> None:
    run = open_run(saved)
    assert run.restore(components="own", step=3)["cursor"] == 3
    second = run.restore(components="own", step=3, rank=1)
    assert (second["cursor"], second["seen"].tolist(), second["extra"][0].tolist()) == (13, [0, 1, 2], [1.0, 1.0])
    with pytest.raises(NotFound, match="stored per rank, for ranks 0 to 1; there is no rank 2"):
        run.restore(components="own", step=3, rank=2)
    assert run.restore(components="log", step=3)["text"] == "from rank 0"


def test_one_process_goes_on_where_two_stopped(mesh: Mesh, tmp_path: Path) -> None:
    run_job(SAVE, args=[str(tmp_path / "run")])
    sampler = Sampler(100, 10)
    like = {"params": like_of_one(mesh), "log": RankZero({"text": "", "host": np.zeros(2, np.int64)}), "data": sampler}
    mine = {"cursor": 0, "seen": np.zeros(3, np.int64), "extra": [jnp.zeros(2)]}
    with pytest.raises(
        GuaranteeError, match=r"promises 'exact', this restore can keep 'coverage'(.|\n)*participants 1 instead of 2"
    ):
        resume(tmp_path / "run", {**like, "own": PerRank(mine)})
    with checkpointer(tmp_path / "run") as saver:
        restored = saver.restore_or_init(dict, like={**like, "own": PerRank(mine)}, accept_guarantee="coverage", remap={0: 1})
        assert (restored.step, restored.guarantee) == (2, "coverage")
        assert restored.components["own"].value["cursor"] == 12
        np.testing.assert_array_equal(restored.components["params"]["both"], HOST + 2)
    with checkpointer(tmp_path / "run") as saver:
        restored = saver.restore_or_init(dict, like={**like, "own": PerRank(mine)}, accept_guarantee="coverage")
        assert restored.components["own"].value is mine or restored.components["own"].value["cursor"] == 0


WIDER = (
    STATE
    + """
with checkpointer(ARGS[0], chunk_bytes=1024) as saver:
    like = {"params": {"x": put(HOST * 0, "data", "model"), "host": np.zeros(3)}, "data": Sampler(100, 10)}
    restored = saver.restore_or_init(lambda: 1 / 0, like=like, accept_guarantee="coverage")
    assert_same(restored.components["params"]["x"], put(HOST, "data", "model"))
    assert_same(restored.components["params"]["host"], np.arange(3.0))
    print("restored:", restored.step, restored.guarantee, like["data"].position)
    saver.save(6, like).result(60)
"""
)


def test_two_processes_go_on_where_one_stopped(mesh: Mesh, tmp_path: Path) -> None:
    sampler = Sampler(100, 10)
    sampler.seek(50)
    x = jax.device_put(HOST, NamedSharding(mesh, PartitionSpec(None, ("data", "model"))))
    save(tmp_path / "run", {"params": {"x": x, "host": np.arange(3.0)}, "data": sampler}, step=5, chunk_bytes=512)
    for output in run_job(WIDER, args=[str(tmp_path / "run")]):
        assert "restored: 5 coverage 50" in output


UNEQUAL = (
    STATE
    + """
from ckptcore.errors import SaveAborted
DIFFERING = [
    {"host": np.arange(4) + RANK},
    {"local": jnp.arange(4) + RANK},
    {"value": RANK},
    {"more": 1} if RANK else {},
    {f"array{number}": np.ones(2) for number in range(4)} if RANK else {},
]
with checkpointer(ARGS[0]) as saver:
    for step, differing in enumerate(DIFFERING, 1):
        try:
            saver.save(step, {"params": {"same": np.ones(2), **differing}}).result(60)
        except SaveAborted as error:
            print(f"refused {step}:", str(error).replace(chr(10), " "))
    saver.save(9, {"params": {"same": np.ones(2)}, "own": RankZero({"host": np.arange(4) + RANK, "value": RANK})}).result(60)
    print("then: saved")
"""
)


def test_what_must_be_equal_on_all_ranks_and_is_not(tmp_path: Path) -> None:
    for output in run_job(UNEQUAL, args=[str(tmp_path / "run")]):
        refusals = [line for line in output.splitlines() if line.startswith("refused")]
        assert len(refusals) == 5, output
        for line, name in zip(
            refusals, ["params.host", "params.local", "params.value", "params.more", "params.array"], strict=True
        ):
            assert name in line
            assert "PerRank" in line, line
            assert "RankZero" in line, line
        assert "then: saved" in output
    steps = [(known.id.step, known.state) for known in open_run(tmp_path / "run").generations()]
    assert steps == [(1, "aborted"), (2, "aborted"), (3, "aborted"), (4, "aborted"), (5, "aborted"), (9, "committed")]


KILLED = (
    STATE
    + """
import time
from ckptcore.errors import SaveAborted


def die(event):
    if event.kind == "chunk-written" and event.generation.step == 2 and RANK == 1:
        print("dying", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


with checkpointer(ARGS[0], chunk_bytes=1024, coordinator_timeout=60.0, on_event=die) as saver:
    saver.save(1, components(1)).result(60)
    saver._timeout = 2.0  # here one never comes
    handle = saver.save(2, components(2))
    started = time.monotonic()
    try:
        handle.result()
    except SaveAborted as error:
        print("late:", error.missing, error, flush=True)
        assert time.monotonic() - started < 9
os._exit(0)
"""
)


def test_a_rank_that_is_killed_in_its_write_hangs_nobody(tmp_path: Path) -> None:
    url = tmp_path / "run"
    with Job(KILLED, args=[str(url)]) as job:
        survivor, victim = job.ranks
        assert victim.wait() == -9
        line = survivor.wait_for("late:")
        assert "(1,)" in line
        assert "no receipt from rank 1 of 2 within 2 s" in line
        survivor.wait()
    for output in run_job(RESTORE, args=[str(url)]):
        assert "restored: 1 newest exact" in output
    assert check_run(url) == []


COORDINATOR_KILLED = (
    STATE
    + """
def die(event):
    if event.kind == "receipts-complete" and event.generation.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


with checkpointer(ARGS[0], chunk_bytes=1024, on_event=die) as saver:
    saver.save(1, components(1)).result(60)
    saver.save(2, components(2)).result(60)
"""
)


def test_a_coordinator_that_is_killed_after_all_receipts(tmp_path: Path) -> None:
    url = tmp_path / "run"
    with Job(COORDINATOR_KILLED, args=[str(url)]) as job:
        coordinator, survivor = job.ranks
        assert coordinator.wait() == -9
        # JAX ends a job whose first process is gone.
        assert survivor.wait() != 0
    assert [known.state for known in open_run(url).generations()] == ["committed", "undecided"]
    for output in run_job(RESTORE, args=[str(url)]):
        assert "restored: 2 rolled-forward exact" in output
    assert check_run(url) == []


ONE_RANK_FAILS = (
    STATE
    + """
from ckptcore.errors import SaveAborted, StagingLimit, UnsupportedLeaf

limit = 1000 if RANK else None
with checkpointer(ARGS[0], coordinator_timeout=60.0, max_staging_bytes=limit) as saver:
    try:
        saver.save(1, {"params": {"x": put(HOST, "data")}}).result(60)
    except StagingLimit as error:
        print("refused 1:", error)
    except SaveAborted as error:
        print("refused 1:", error)
    saver.save(1, {"params": {"x": put(HOST[:2], None, "data")}}).result(60)
    try:
        saver.save(2, {"params": {"x": 1}, "own": PerRank(len if RANK else 1)}).result(60)
    except (UnsupportedLeaf, SaveAborted) as error:
        print("refused 2:", error)
    print("then:", saver.save(2, {"params": {"x": 1}}).result(60).generation)
"""
)


def test_a_save_that_one_rank_cannot_make(tmp_path: Path) -> None:
    first, second = run_job(ONE_RANK_FAILS, args=[str(tmp_path / "run")])
    assert "refused 1: save 000001-000000000001-1 was aborted: a rank could not write its part. rank 1: StagingLimit" in first
    assert "refused 1: rank 1: the snapshot takes 2048 bytes, max_staging_bytes allows 1000" in second
    assert "refused 2: save 000001-000000000002-1 was aborted: a rank could not write its part. rank 1: UnsupportedLeaf" in first
    assert "refused 2: own: builtin_function_or_method" in second
    for output in (first, second):
        assert "then: 000001-000000000002-2" in output


ONE_RANK_DIFFERS = (
    STATE
    + """
from ckptcore.errors import StructureMismatch

with checkpointer(ARGS[0]) as saver:
    saver.save(1, {"params": {"x": put(HOST, "data")}, "own": PerRank({"n": RANK})}).result(60)
    like = {"params": {"x": put(HOST * 0, "data")}, "own": PerRank({"n": 0, **({"more": 1} if RANK else {})})}
    try:
        saver.restore(like=like)
    except StructureMismatch as error:
        print("refused:", str(error).replace(chr(10), " "))
    restored = saver.restore(like=like, missing="keep", accept_guarantee="coverage")
    print("then:", restored.step, restored.components["own"].value)
"""
)


def test_a_restore_that_one_rank_cannot_make(tmp_path: Path) -> None:
    first, second = run_job(ONE_RANK_DIFFERS, args=[str(tmp_path / "run")])
    for output in (first, second):
        assert "own['more']: not in the checkpoint" in output
    assert "then: 1 {'n': 0}" in first
    assert "then: 1 {'more': 1, 'n': 1}" in second


def test_damage_that_one_rank_meets_moves_all(tmp_path: Path) -> None:
    url = tmp_path / "run"
    run_job(SAVE, args=[str(url)])
    victims = [path for path in url.glob("generations/*-000000000002-*/state/ranks/00001-*/d/*") if path.is_file()]
    largest = max(victims, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    # A row in the part of an array that rank 1 wrote and that no other rank needs.
    place = data.find((HOST + 2)[16, :16].tobytes())
    assert place >= 0
    data[place + 5] ^= 1
    largest.write_bytes(data)
    for output in run_job(RESTORE, args=[str(url)]):
        assert "restored: 1 fallen-back exact" in output
    notes = [note for known in open_run(url).generations() if (note := known.obstacle)]
    assert len(notes) == 1
    assert "marked damaged: rank 1: chunk" in notes[0]
