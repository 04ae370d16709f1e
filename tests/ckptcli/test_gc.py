"""`ckpt gc`: nothing without --apply, nothing retired without a policy, and why what stays stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorstore as ts

from ckptcore import names
from ckptcore.errors import StoreUnavailable
from ckptcore.history import read_run
from ckptcore.incarnations import stored
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.operate.collecting import collect, stored_bytes
from ckptcore.run import open_run
from ckptcore.store import Storage, open_store
from tests.ckptcli.support import Ckpt
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import Job, contents, file_store


@pytest.fixture
def run(place: Path) -> Path:
    """A run with commits of steps 10 to 50, and an aborted save of step 60."""
    job = Job(file_store(place / "run"))
    job.open()
    for step in range(10, 60, 10):
        job.save(step)
    aborted = job.next_generation(60)
    job.write(aborted, 0)
    job.coordinator().commit(aborted, 2, timeout=0.0)
    return place / "run"


def steps(run: Path) -> list[int]:
    return [generation.step for generation in stored(file_store(run))]


def test_without_a_policy_only_what_is_given_up_goes(ckpt: Ckpt, run: Path) -> None:
    before = contents(run)
    aborted = names.generation_prefix(GenerationId(1, 60, 1))
    size = sum(len(data) for key, data in before.items() if key.startswith(aborted))
    made = ckpt("gc", run, "--json").json
    assert (made["retired"], made["bytes"], made["applied"]) == ([], size, False)
    assert [row["generation"] for row in made["deleted"]] == ["000001-000000000060-1"]
    told = ckpt("gc", run).out
    assert "of 1 generation would be deleted" in told
    assert told.endswith("nothing was changed: --apply does it\n")
    assert contents(run) == before
    assert "of 1 generation deleted" in ckpt("gc", run, "--apply").out
    assert steps(run) == [10, 20, 30, 40, 50]
    assert ckpt("gc", run).out == "there is nothing to retire or to delete\n"


def test_with_a_policy(ckpt: Ckpt, run: Path) -> None:
    reader = open_run(run)
    for step, loss in ((10, 0.5), (20, 0.1), (30, 0.7)):
        reader.annotate(GenerationId(1, step, 1), metrics={"eval:loss": loss})
    options = ["--keep-last", "2", "--keep-every", "30", "--keep-best", "eval:loss:min"]
    shown = ckpt("gc", run, *options, "--json").json
    made = ckpt("gc", run, *options, "--apply", "--json").json
    assert made == {**shown, "applied": True}
    assert [row["reason"] for row in made["retired"]] == [
        "not among the newest 2; not at a multiple of 30 steps; not among the best 1 by eval:loss (min)"
    ]
    assert steps(run) == [20, 30, 40, 50]


def test_what_is_kept_and_why(ckpt: Ckpt, run: Path) -> None:
    job = Job(file_store(run))
    job.open()
    job.write(job.next_generation(70), 0)
    (row,) = ckpt("gc", run, "--json").json["held"]
    assert "it is undecided" in row["reason"]
    assert row["bytes"] > 0
    assert "kept:" in ckpt("gc", run).out


def test_a_job_that_died_while_it_opened_can_be_vouched_for(ckpt: Ckpt, run: Path) -> None:
    full = FaultyStore(file_store(run), lambda operation, key: operation == "put_if_absent" and key.endswith("base.json"))
    with pytest.raises(StoreUnavailable):
        Job(full).open()
    made = ckpt("gc", run, "--keep-last", "2", "--apply", "--json").json
    assert [row["generation"] for row in made["deleted"]] == ["000001-000000000060-1"]
    assert all("incarnation 2, which was claimed, has recorded no base" in row["reason"] for row in made["held"])
    assert steps(run) == [10, 20, 30, 40, 50]
    assert "nothing is held back for incarnation 7: only for 2" in ckpt.refused("gc", run, "--dead-claim", "7", status=2)
    ckpt("gc", run, "--dead-claim", "2", "--apply")
    assert steps(run) == [40, 50]


def test_bad_input(ckpt: Ckpt, run: Path, place: Path) -> None:
    assert "at least 2" in ckpt.refused("gc", run, "--keep-last", "1", status=2)
    for given in ("loss", "loss:best", "loss:min:x", ":min", "loss:min:0"):
        ckpt.refused("gc", run, "--keep-best", given, status=2)
    assert "there is no run at" in ckpt.refused("gc", place, status=5)
    assert steps(run) == [10, 20, 30, 40, 50, 60]


def test_an_unreadable_decision_stops_it(ckpt: Ckpt, run: Path) -> None:
    (run / names.ledger_key(GenerationId(1, 10, 1))).write_bytes(b"{}")
    assert "nothing is collected while the decision about" in ckpt.refused("gc", run, "--keep-last", "2", "--apply", status=4)


def test_sizes_on_an_object_store_are_those_of_the_receipts() -> None:
    """To ask for the size of every object would take as many requests."""
    store = open_store("memory://run", Storage(context=ts.Context()))
    job = Job(store)
    job.open()
    for step in (10, 20, 30):
        job.save(step)
    generation = GenerationId(1, 10, 1)
    exact = sum(store.size(key) or 0 for key in store.list(names.generation_prefix(generation)))
    found = stored_bytes(store, read_run(store).run_id, generation)
    assert 0.4 * exact < found <= exact
    (piece,) = collect(store, Keep(last=2), apply=True).deleted
    assert (piece.generation, piece.bytes) == (generation, found)
