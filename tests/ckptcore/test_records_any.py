from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ckptcore import records
from ckptcore.errors import InvalidRecord

TEXT = st.characters(codec="utf-8")


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type as msgspec describes it."""
    makers: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
        inspect.NoneType: lambda _: st.none(),
        inspect.BoolType: lambda _: st.booleans(),
        inspect.IntType: lambda one: st.integers(one.ge, one.le),
        inspect.StrType: any_text,
        inspect.AnyType: lambda _: st.none() | st.integers(-5, 5) | st.text(TEXT, max_size=3),
        inspect.LiteralType: lambda one: st.sampled_from(one.values),
        inspect.ListType: lambda one: st.lists(any_of(one.item_type), max_size=2),
        inspect.VarTupleType: lambda one: st.lists(any_of(one.item_type), max_size=2).map(tuple),
        inspect.TupleType: lambda one: st.tuples(*map(any_of, one.item_types)),
        inspect.DictType: lambda one: st.dictionaries(any_of(one.key_type), any_of(one.value_type), max_size=2),
        inspect.UnionType: lambda one: st.one_of(*map(any_of, one.types)),
        inspect.StructType: lambda one: st.fixed_dictionaries({field.name: any_of(field.type) for field in one.fields}).map(
            lambda values: one.cls(**values)
        ),
    }
    return makers[type(kind)](kind)


def any_text(kind: Any) -> st.SearchStrategy[str]:
    if kind.pattern is None:
        return st.text(TEXT, max_size=8)
    return st.from_regex(kind.pattern, alphabet=TEXT).filter(lambda text: kind.max_length is None or len(text) <= kind.max_length)


@functools.cache
def any_record(name: str) -> st.SearchStrategy[Any]:
    """Made once: what a pattern allows takes long to work out."""
    return any_of(inspect.type_info(records.RECORDS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", records.RECORDS)
@settings(max_examples=25)
@given(draw=st.data())
def test_any_record_that_is_accepted_comes_back_as_it_was(name: str, draw: st.DataObject) -> None:
    kind = records.RECORDS[name]
    record = draw.draw(any_record(name))
    record = msgspec.structs.replace(record, version="1.0", requires=[])
    data = records.encode(record)
    try:
        found = records.decode(data, kind, key="k")
    except InvalidRecord:
        assert kind in records._CHECKS, "types alone do not refuse it"
        return
    assert found == record
    assert records.encode(found) == data
