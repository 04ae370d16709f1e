"""The quick cases on an object store: moto's S3 server, started on loopback; one adapter of each framework.

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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("adapter", ["jax", "torch"])
def test_the_quick_cases_pass_on_s3(adapter: str, tmp_path: Path) -> None:
    with s3_server() as server:
        place = ["--store", server.url("suite"), "--endpoint", server.endpoint, "--region", REGION]
        argv = ["-m", "ckpt_conformance", "run", "--adapter", adapter, "--quick", "-j", "2", "--json", "results.json", *place]
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        left = server.objects("suite/")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    quick = select(load_corpus(data.folder("scenarios")).cases.values(), [], quick=True)
    assert {result["case"]: result["outcome"] for result in results} == {case.id: "passed" for case in quick}
    assert not left, "what the cases stored is removed"
