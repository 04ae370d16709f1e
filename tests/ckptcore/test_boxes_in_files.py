"""Boxes of arrays that lie in files as plain bytes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcore.errors import Damaged, NotFound, StoreError
from ckptcore.formats import boxes_in_files
from ckptcore.formats.boxes_in_files import opened, read_box
from ckptcore.geometry import Box
from tests.ckptcore.support import memory_directory


@st.composite
def arrays_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
    bounds = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return shape, Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))


@settings(max_examples=200, deadline=None)
@given(arrays_and_boxes(), st.sampled_from(["float32", "bfloat16", "bool", "uint8"]), st.sampled_from([1, 64, 4096]))
def test_any_box_of_any_array(case: tuple[tuple[int, ...], Box], dtype: str, page: int) -> None:
    shape, box = case
    count = int(np.prod(shape, dtype=int))
    whole = (np.arange(count) % 2 if dtype == "bool" else np.arange(count) % 251).astype(boxes_in_files.dtypes.numpy_dtype(dtype))
    whole = whole.reshape(shape)
    with memory_directory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes_in_files, "_PAGE", page)
        patch.setattr(boxes_in_files, "_SLAB_BYTES", 32)
        (place / "file").write_bytes(b"head" + whole.tobytes())
        with opened(place / "file") as file:
            found = read_box(file, 4, dtype, shape, box)
    assert found.dtype == whole.dtype
    assert np.array_equal(found, whole[box.slices()])
    assert found.flags.c_contiguous
    assert found.flags.owndata


def test_any_byte_may_stand_for_true(place: Path) -> None:
    (place / "file").write_bytes(bytes([0, 1, 2, 255]))
    with opened(place / "file") as file:
        found = read_box(file, 0, "bool", (4,), Box.whole((4,)))
    assert found.tobytes() == bytes([0, 1, 1, 1])


def test_a_file_that_is_too_short_or_another_one(place: Path) -> None:
    path = place / "file"
    path.write_bytes(bytes(10))
    with opened(path) as file, pytest.raises(Damaged, match="ends at byte 10, 2 bytes too early"):
        read_box(file, 4, "float32", (2,), Box.whole((2,)))
    with opened(path) as file:
        stamp = file.stamp
    path.write_bytes(bytes(11))
    with pytest.raises(Damaged, match="was changed after its header"), opened(path, stamp):
        pass


def test_what_is_no_file(place: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"), opened(place / "nothing"):
        pass
    with pytest.raises(NotFound, match="is not a file"), opened(place):
        pass
    os.mkfifo(place / "pipe")
    with pytest.raises(NotFound, match="is not a file"), opened(place / "pipe"):
        pass
    (place / "file").write_bytes(b"")
    with pytest.raises(StoreError), opened(place / "file" / "below"):
        pass
