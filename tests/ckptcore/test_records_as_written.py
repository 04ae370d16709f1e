"""Records that are byte for byte as this release writes them are decoded in one go: with the same outcome as any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import records
from ckptcore.errors import DamageError
from ckptcore.records import RECORDS, Record

VALID = Path(__file__).parents[2] / "spec" / "v1" / "examples" / "valid"
TYPED = ("layout", "receipt", "index", "roster")
EXAMPLES = [(kind, path.read_bytes()) for kind in TYPED for path in sorted((VALID / kind).glob("*.json"))]


def strictly(data: bytes, kind: type[Record]) -> Record:
    """The decoder that looks at everything one by one."""
    return records._convert(records._header(data, "key"), kind, "key")


def outcome(decode: Any, data: bytes, kind: type[Record]) -> Any:
    try:
        return decode(data, kind)
    except DamageError as error:
        return type(error), str(error)


def check(name: str, data: bytes) -> None:
    kind = RECORDS[name]
    assert outcome(lambda *given: records.decode(*given, key="key"), data, kind) == outcome(strictly, data, kind)


def test_there_are_examples_of_every_such_kind_and_they_go_this_way() -> None:
    taken = {name for name, data in EXAMPLES if records._as_written(data, RECORDS[name]) is not None}
    assert taken == set(TYPED)


@pytest.mark.parametrize(("name", "data"), EXAMPLES)
def test_examples_are_what_the_strict_decoder_says(name: str, data: bytes) -> None:
    check(name, data)
    assert records.encode(records.decode(data, RECORDS[name], key="key")) == data


@given(st.data())
def test_whatever_is_changed_the_outcome_is_that_of_the_strict_decoder(data: st.DataObject) -> None:
    name, whole = data.draw(st.sampled_from(EXAMPLES))
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(len(whole), start + 3)))
    put = data.draw(
        st.sampled_from([b"", b" ", b"0", b"1.0", b"1e1", b"-", b'"', b",", b"{}", b"null", b"\xff", b"\\ud800", b"\n"])
    )
    check(name, whole[:start] + put + whole[stop:])


def again(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"requires": ["later"]},
        {"requires": [1]},
        {"version": "1.7"},
        {"version": "2.0"},
        {"version": "1"},
        {"format": "ckpt/other"},
        {"format": 3},
        {"generation": 1.5},
        {"phases": {"write": 2**53}},
        {"phases": {"\U0001f600": 1, "\ufb33": 2}},
    ],
    ids=repr,
)
def test_what_another_release_might_write_is_left_to_the_strict_decoder(name: str, change: dict[str, Any]) -> None:
    data = next(data for kind, data in EXAMPLES if kind == name)
    check(name, again(json.loads(data) | change))


@pytest.mark.parametrize("name", TYPED)
def test_a_key_that_is_there_twice_is_refused(name: str) -> None:
    data = next(data for kind, data in EXAMPLES if kind == name)
    twice = data[:-1] + b',"version":"1.0"}'
    assert records._as_written(twice, RECORDS[name]) is None
    with pytest.raises(DamageError, match="duplicate key 'version'"):
        records.decode(twice, RECORDS[name], key="key")


def test_a_record_that_holds_anything_of_the_callers_goes_the_strict_way() -> None:
    lead = next(data for name, data in EXAMPLES if name == "receipt" and json.loads(data).get("lead"))
    raw = json.loads(lead)
    raw["lead"]["metadata"] = {"x": 1.5}
    assert records._as_written(again(raw), records.Receipt) is None
    with pytest.raises(DamageError, match="not an integer"):
        records.decode(again(raw), records.Receipt, key="key")


def test_what_spans_several_fields_is_checked_all_the_same() -> None:
    data = next(data for name, data in EXAMPLES if name == "receipt" and json.loads(data)["rank"] == 1)
    raw = json.loads(data) | {"participants": 1}
    assert msgspec.json.decode(again(raw), type=records.Receipt).rank == 1
    with pytest.raises(DamageError, match="rank 1 of 1 participants"):
        records.decode(again(raw), records.Receipt, key="key")
