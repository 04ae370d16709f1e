"""Cases on an object store: moto's S3 server, started on loopback. It is slow, so only a few of the quick ones run here.

All of them: start a server, then `python -m ckpt_conformance run --adapter jax --quick --store s3://BUCKET --endpoint URL`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.servers import REGION, s3_server

LIMIT = 280.0  # seconds
CASES = [
    "crash/coordinator-dies.before-index",
    "damage/source.file",
    "order/zombie.before-decision",
    "store/decided-elsewhere.an-abort",
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cases_pass_on_s3(tmp_path: Path) -> None:
    chosen = [word for case in CASES for word in ("--only", case)]
    with s3_server() as server:
        place = ["--store", server.url("suite"), "--endpoint", server.endpoint, "--region", REGION]
        argv = ["-m", "ckpt_conformance", "run", "--adapter", "jax", "-j", "1", "--json", "results.json", *place, *chosen]
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {result["case"]: result["outcome"] for result in json.loads((tmp_path / "results.json").read_text())["results"]}
    assert {case: outcomes.get(case) for case in CASES} == dict.fromkeys(CASES, "passed")
