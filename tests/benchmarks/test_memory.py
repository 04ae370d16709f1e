"""The peak of memory in a block, by the kernel and by looking."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from benchmarks import memory

MIB = 1 << 20
NEARLY = MIB - (1 << 16)
"""The kernel counts pages for each CPU, and adds them up now and then."""


def _use(mebibytes: int) -> None:
    with mmap.mmap(-1, mebibytes * MIB) as fresh:  # memory that no allocator has kept, and it is gone again
        np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE] = 1


def test_sees_what_is_gone_at_the_end() -> None:
    with memory.Peak() as peak:
        _use(64)
    assert 64 * NEARLY <= peak.bytes < 96 * MIB


def test_an_earlier_peak_does_not_count() -> None:
    _use(128)
    with memory.Peak() as peak:
        _use(32)
    assert 32 * NEARLY <= peak.bytes < 96 * MIB


def test_counts_from_what_is_given() -> None:
    base = memory.resident()
    kept = np.ones(32 * MIB, np.uint8)
    with memory.Peak(base) as peak:
        _use(32)
    assert 64 * NEARLY <= peak.bytes < 96 * MIB
    del kept


def test_looks_where_the_kernel_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "missing" / "clear_refs")
    with memory.Peak() as peak:
        kept = np.ones(64 * MIB, np.uint8)
    assert not peak.exact
    assert peak.bytes >= 64 * NEARLY
    del kept
