"""Whole jobs on an S3 server behind a lossy proxy: random faults from a seed, in any request of a job.

However the saves end, what was acknowledged is there and verifies, everything else is settled by the next start, and no decisive
record ever changes (spec: P-50, P-51, P-55, S-5). The server is asked directly.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest
import tensorstore as ts

from ckptcore import saving
from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer
from ckptcore.errors import SaveError, StoreError
from ckptcore.history import History
from ckptcore.incarnations import undecided
from ckptcore.store import Storage, open_store
from tests.ckptcore.support import checkpointer, on_ranks, same
from tests.faults.after import start_again
from tests.faults.member import large
from tests.faults.proxy import Fault, Proxy, Request, Script, proxy
from tests.servers import S3
from tests.spec.checker import check_run

pytestmark = pytest.mark.slow

FAULTS: list[Fault] = ["lost answer", "refused", "late", "truncated", 409, 412, 500, 503, "then 409", "then 412"]
CONDITIONAL = (409, 412, "then 409", "then 412")
SEEDS = range(2)
SHARE = 0.25
"""Of the requests. Each is made several times by the driver, and by the store, before it is given up."""
STEPS = 3
OPENINGS = 10
DECISIVE = ("run.json", "ledger/", "incarnations/")


def randomly(seed: int, share: float) -> Script:
    """A share of all requests meets a fault. Conditional answers are for puts alone."""
    source, lock = random.Random(seed), threading.Lock()

    def script(request: Request) -> Fault:
        with lock:
            if source.random() >= share:
                return "pass"
            fault = source.choice(FAULTS)
        if request.method != "PUT" and fault in CONDITIONAL:
            return 503
        # TensorStore 0.1.86 crashes when it is told that a database's manifest is there and then finds none: no S3 does that.
        return 503 if fault == 412 and "/state/" in request.key else fault

    return script


def run_job(url: str, storage: Storage, link: Channel) -> dict[int, str]:
    """One rank: open the run as often as it takes, save, and tell how each save ended."""
    for opening in range(OPENINGS):
        begin = large(0, link.rank, link.size)
        saver = checkpointer(url, link, storage=storage, coordinator_timeout=5.0)
        try:
            restored = saver.restore_or_init(lambda begin=begin: begin, like=begin)
        except StoreError:
            assert opening < OPENINGS - 1, "never opened"
            continue
        assert restored.step == 0
        assert same(restored.components, begin)
        return save_all(saver, link)
    raise AssertionError


def save_all(saver: Checkpointer, link: Channel) -> dict[int, str]:
    outcomes = {}
    for step in range(1, STEPS + 1):
        try:
            saver.save(step, large(step, link.rank, link.size)).result()
            outcomes[step] = "committed"
        except SaveError as error:
            outcomes[step] = error.kind
    return outcomes


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults(s3: S3, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "GRACE", 5.0)
    url = s3.url(f"seed-{seed}")
    with proxy(s3.endpoint) as lossy:
        lossy.script, lossy.lateness = randomly(seed, SHARE), 0.3
        context = ts.Context({"s3_request_retries": {"initial_delay": "5ms", "max_delay": "20ms", "max_retries": 2}})
        storage = dataclasses.replace(s3.storage, endpoint=lossy.endpoint, context=context, timeout=2.0)
        outcomes = on_ranks(2, lambda link: run_job(url, storage, link))
        lossy.settle()
        check_decisive(s3, lossy, f"seed-{seed}/")
    base = start_again(url, storage=s3.storage)
    check_outcomes(url, s3, outcomes, base)
    assert check_run(s3.download(f"seed-{seed}/", tmp_path / "run")) == []
    assert len(lossy.faults) > 50


def check_outcomes(url: str, s3: S3, outcomes: list[dict[int, str]], base: int) -> None:
    store = open_store(url, s3.storage)
    assert undecided(store) == []
    generations = [decided.generation for decided in History.load(store).commits()]
    committed = {generation.step for generation in generations if generation.incarnation < generations[0].incarnation}
    for rank in outcomes:
        assert {step for step, outcome in rank.items() if outcome == "committed"} <= committed
        assert not {step for step, outcome in rank.items() if outcome == "save-aborted"} & committed
    assert base == max(committed, default=0)


def check_decisive(s3: S3, lossy: Proxy, prefix: str) -> None:
    """One value a key was ever stored, and it is the one that is there."""
    stored = defaultdict(list)
    for request, answer, _ in lossy.done:
        if request.method == "PUT" and answer.status == 200:
            stored[request.key.removeprefix(prefix)].append(request.body)
    found = {key: data for key, data in s3.objects(prefix).items() if key.startswith(DECISIVE)}
    assert found
    assert {key: bodies for key, bodies in stored.items() if key.startswith(DECISIVE)} == {
        key: [data] for key, data in found.items()
    }
