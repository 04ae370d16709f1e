from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import canonical
from ckptcore.errors import InvalidRecord

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-canonical.MAX_INT, canonical.MAX_INT) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_is_encoded_decodes_to_itself(value: object) -> None:
    encoded = canonical.encode(value)
    assert canonical.decode(encoded, what="x") == value
    assert json.loads(encoded) == value


@given(JSON)
def test_there_is_one_encoding_whatever_the_order_of_keys(value: object) -> None:
    def reverse(item: object) -> object:
        if isinstance(item, dict):
            return {key: reverse(item[key]) for key in reversed(item)}
        return [reverse(element) for element in item] if isinstance(item, list) else item

    assert canonical.encode(reverse(value)) == canonical.encode(value)


@given(st.dictionaries(TEXT, st.none()))
def test_keys_are_in_order_of_utf16_code_units(value: dict[str, None]) -> None:
    keys = list(json.loads(canonical.encode(value)))
    assert keys == sorted(keys, key=lambda key: key.encode("utf-16-be"))


def test_the_ordering_example_of_rfc_8785() -> None:
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical.encode(value)).values()) == [2, 4, 6, 7, 1, 5, 3]


def test_keys_beyond_the_bmp_sort_before_the_end_of_the_bmp_at_every_depth() -> None:
    inner = {"\ufb33": 1, "\U0001f600": 2}
    assert canonical.encode([{"a": inner}]) == '[{"a":{"😀":2,"\ufb33":1}}]'.encode()


class Version(str):
    """As torch has it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


def test_text_and_numbers_may_be_of_subclasses() -> None:
    assert canonical.encode({"b": Version("2.13"), Version("a"): HTTPStatus.OK}) == b'{"a":200,"b":"2.13"}'


def test_the_form_is_dense_utf8_with_the_escapes_of_rfc_8785() -> None:
    value = {"b": [1, -2, True, None], "a": 'é"\\/\b\f\n\r\t\x00\x1f\x7f'}
    assert canonical.encode(value) == b'{"a":"\xc3\xa9\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f","b":[1,-2,true,null]}'


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        float("inf"),
        2**53,
        -(2**53),
        b"bytes",
        {1: 2},
        {None: 1},
        {1, 2},
        canonical,
        "\ud800",
        {"\udc00": 1},
        {"\ud800": 1, "\U0001f600": 2},
    ],
    ids=ascii,
)
def test_encode_refuses_what_has_no_canonical_form(value: object) -> None:
    with pytest.raises(InvalidRecord):
        canonical.encode(value)


def test_encode_refuses_deep_nesting_and_cycles() -> None:
    deep: list[object] = []
    for _ in range(canonical.MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(InvalidRecord, match="nested"):
        canonical.encode(deep)
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(InvalidRecord, match="nested"):
        canonical.encode(cycle)


def test_the_largest_integers_and_the_deepest_nesting_are_accepted() -> None:
    assert canonical.decode(b"[9007199254740991,-9007199254740991]", what="x") == [2**53 - 1, 1 - 2**53]
    depth = canonical.MAX_DEPTH
    assert canonical.encode(canonical.decode(b"[" * depth + b"]" * depth, what="x")) == b"[" * depth + b"]" * depth


REFUSED = {
    "duplicate key": b'{"a":1,"b":2,"a":1}',
    "duplicate key inside": b'[{"x":{"a":1,"\\u0061":1}}]',
    "float": b"1.0",
    "exponent": b"1e2",
    "small exponent": b"[1E400]",
    "NaN": b"NaN",
    "Infinity": b"[-Infinity]",
    "2**53": b"9007199254740992",
    "huge integer": b"[" + b"9" * 100_000 + b"]",
    "byte order mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"a":1}'.encode("utf-16"),
    "not utf-8": b'"\xff"',
    "overlong utf-8": b'"\xc0\xaf"',
    "surrogate in utf-8": b'"\xed\xa0\x80"',
    "escaped lone surrogate": b'"\\ud800"',
    "escaped lone surrogate as key": b'{"\\udfff":1}',
    "swapped pair": b'"\\ude00\\ud83d"',
    "nested too deeply": b"[" * 66 + b"]" * 66,
    "very deep nesting": b"[" * 200_000,
    "very deep objects": b'{"a":' * 100_000,
    "two documents": b"{}{}",
    "trailing comma": b"[1,]",
    "comment": b"[1] // one",
    "single quotes": b"{'a':1}",
    "truncated": b'{"a":[1,2',
    "control character in text": b'"a\nb"',
    "leading zero": b"01",
    "plus sign": b"+1",
    "empty": b"",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_decode_refuses_what_readers_could_understand_differently(data: bytes) -> None:
    with pytest.raises(InvalidRecord, match=r"^the record: ") as caught:
        canonical.decode(data, what="the record")
    assert len(str(caught.value)) < 400


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert canonical.decode(b'"\\ud83d\\ude00"', what="x") == "😀"


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        value = canonical.decode(data, what="x")
    except InvalidRecord:
        return
    assert canonical.decode(canonical.encode(value), what="x") == value
