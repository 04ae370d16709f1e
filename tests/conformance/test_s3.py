"""The quick cases on an object store: moto's S3 server, started on loopback; all of them, on both adapters, by `make test-long`.

By hand: start a server, then `python -m ckpt_conformance run --adapter jax --quick --store s3://BUCKET --endpoint URL`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_conformance import data
from ckpt_conformance.cases.corpus import load_corpus
from ckpt_conformance.cases.scenario import select
from tests.processes import ROOT
from tests.servers import REGION, s3_server

LIMIT = 840.0
"""Seconds, on a machine with other things to do; by itself an adapter takes about one minute on two cores."""


SOME = ["crash/coordinator-dies", "order/rollback.to-a-step", "store/decided-elsewhere"]
"""For every run of the tests."""


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize("adapter", ["jax", "torch"])
def test_the_quick_cases_pass_on_s3(adapter: str, tmp_path: Path) -> None:
    check_cases(adapter, [], tmp_path)


@pytest.mark.slow
def test_some_of_them_pass(tmp_path: Path) -> None:
    check_cases("jax", SOME, tmp_path)


def check_cases(adapter: str, only: list[str], place: Path) -> None:
    with s3_server() as server:
        where = ["--store", server.url("suite"), "--endpoint", server.endpoint, "--region", REGION]
        chosen = ["--quick", *(option for case in only for option in ("--only", case))]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ckpt_conformance",
                "run",
                "--adapter",
                adapter,
                "-j",
                "2",
                "--json",
                "results.json",
                *chosen,
                *where,
            ],
            cwd=place,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        left = server.objects("suite/")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((place / "results.json").read_text())["results"]
    quick = select(load_corpus(data.folder("scenarios")).cases.values(), only, quick=True)
    assert {result["case"]: result["outcome"] for result in results} == {case.id: "passed" for case in quick}
    assert len(results) >= max(3, len(only))
    assert not left, "what the cases stored is removed"
