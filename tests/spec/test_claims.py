"""Claims are contiguous (P-8): the fence of an incarnation looks at the next number only (P-38)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import records
from ckptcore.coordinator import Coordinator
from ckptcore.errors import Superseded
from ckptcore.incarnations import Opening
from ckptcore.names import GenerationId
from ckptcore.store import open_store


def test_a_folder_that_a_killed_claim_left_takes_no_number(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    facts = records.StoreFacts(driver="file", put_if_absent=True, read_after_write=True, list_after_write=True)
    topology = records.Topology(framework="host", platform="cpu", participants=1, devices=1)
    opening = Opening(store, topology, facts)
    run = opening.identify()
    assert opening.claim(run).incarnation == 1
    (tmp_path / "incarnations" / "000002").mkdir()
    assert opening.claim(run).incarnation == 2
    with pytest.raises(Superseded):
        Coordinator(store, run.run_id, 1).fence(GenerationId(1, 1, 1))
