"""An object store without atomic put-if-absent is refused by the probe, unless a single writer is vouched for (S-17 to S-20)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from ckptcore.errors import UnsafeStore
from ckptcore.objectstore import ObjectStore
from ckptcore.probe import probe
from ckptcore.store import Storage, open_store
from tests.ckptcore.support import checkpointer, state
from tests.faults.proxy import Fault, Request, proxy
from tests.processes import ROOT
from tests.servers import BUCKET, REGION, S3, gcs_server


def unconditional(s3: S3, prefix: str) -> ObjectStore:
    """The store as of a driver that looks whether a key is there, and then writes without a condition."""
    spec = {
        "driver": "s3",
        "endpoint": s3.endpoint,
        "aws_region": REGION,
        "aws_credentials": dict(s3.storage.credentials or {}),
        "use_conditional_write": False,
        "bucket": BUCKET,
        "path": f"{prefix}/",
    }
    known = open_store(s3.url(prefix), s3.storage)
    return ObjectStore(s3.url(prefix), "s3", spec, context=known.context, timeout=20.0)


def test_s3_without_conditional_writes_is_refused(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests are served in turn, all racers may write before any of them reads: only who watches sees it (S-17, S-18)."""
    monkeypatch.setattr("ckptcore.probe.ROUNDS", 6)
    with pytest.raises(UnsafeStore, match="breaks the rule 'put-if-absent'"):
        probe(unconditional(s3, "blind"), single_writer=False)
    assert s3.objects("blind/") == {}


def ignoring(request: Request) -> Fault:
    """As a server that knows no conditional puts: it never sees the condition."""
    for name in [name for name in request.headers if name.lower() == "if-none-match"]:
        del request.headers[name]
    return "pass"


def test_a_server_that_ignores_the_condition_is_refused_whatever_a_race_looks_like(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, two writes on the condition that the key is absent: no chance is needed to see it (S-17)."""
    monkeypatch.setattr("ckptcore.probe._one_winner", lambda store, key: store.put_if_absent(key, b"x") == b"x")
    with proxy(s3.endpoint) as between:
        storage = dataclasses.replace(s3.storage, endpoint=between.endpoint)
        store = open_store(s3.url("ignoring"), storage)
        alone = open_store(s3.url("ignoring"), dataclasses.replace(storage, single_writer=True))
        assert probe(store, single_writer=False).put_if_absent
        assert probe(alone, single_writer=True).put_if_absent
        between.script = ignoring
        with pytest.raises(UnsafeStore, match="a second value was accepted under one key"):
            probe(store, single_writer=False)
        assert not probe(alone, single_writer=True).put_if_absent
    assert s3.objects("ignoring/") == {}


def test_s3_with_conditional_writes_is_accepted(s3: S3) -> None:
    facts = probe(open_store(s3.url("sound"), s3.storage), single_writer=False)
    assert facts.put_if_absent
    assert not facts.single_writer


TRY = """
import sys
from tests.faults.test_unsafe_stores import try_gcs
try_gcs(sys.argv[1])
"""


def test_a_gcs_emulator_that_ignores_preconditions_is_refused() -> None:
    """fake-gcs-server overwrites an object whatever `ifGenerationMatch` says. TensorStore reads its address once a process."""
    with gcs_server() as gcs:
        environment = {**os.environ, **gcs.environment, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", TRY, gcs.url("run")],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "refused, then used by a single writer\n", done.stderr


def try_gcs(url: str) -> None:
    """Open a run there for writing: without and with the promise that there is one writer."""
    with checkpointer(url) as saver, pytest.raises(UnsafeStore, match="breaks the rule 'put-if-absent'"):
        saver.restore_or_init(lambda: state(0), like=state(0))
    alone = Storage(single_writer=True)
    with checkpointer(url, storage=alone) as saver:
        saver.restore_or_init(lambda: state(0), like=state(0))
        facts = saver._opened().incarnation.base.store
        assert facts.single_writer
        assert not facts.put_if_absent
        saver.save(1, state(1)).result()
    with checkpointer(url, storage=alone) as saver:
        assert saver.restore_or_init(lambda: state(0), like=state(0)).step == 1
    print("refused, then used by a single writer")  # noqa: T201 -- read by the test
