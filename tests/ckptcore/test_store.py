"""Put-if-absent, reading, listing and deleting, on file systems and in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcore import retry
from ckptcore.clock import Clock
from ckptcore.errors import CallError, InvalidRecord, StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.objectstore import SMALL, ObjectStore, translate
from ckptcore.store import Storage, Store, open_store

BAD_KEYS = [
    "",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a//b",
    "./a",
    ".hidden",
    "a/.tmp-1",
    "a/",
    "a\0b",
    "a\nb",
    "a\\b",
    "é",
    "a" * 201,
]


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(tmp_path / "run" if request.param == "file" else "memory://run")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.0)


# What every store does


def test_first_value_stays(store: Store) -> None:
    assert store.put_if_absent("ledger/a.json", b"first, and long") == b"first, and long"
    assert store.put_if_absent("ledger/a.json", b"second") == b"first, and long"
    assert store.put_if_absent("ledger/a.json", b"first, and long") == b"first, and long"
    assert store.get("ledger/a.json") == b"first, and long"


def test_absent_is_no_error_and_reading_creates_nothing(store: Store, tmp_path: Path) -> None:
    assert store.get("a/b") is None
    assert store.get("a/b", 3, 4) is None
    assert store.get("a/b", 0, 0) is None
    assert store.size("a/b") is None
    assert list(store.list()) == list(store.list("a/")) == store.children("a/") == store.children("") == []
    store.delete("a/b")
    assert store.delete_prefix("a/") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 2, 9, 1000, *(times * SMALL + more for times in (1, 2, 3, 4) for more in (-1, 0, 1))])
def test_size(store: Store, size: int) -> None:
    store.put_if_absent("k", b"x" * size)
    assert store.size("k") == size


@pytest.mark.parametrize(("size", "most"), [(0, 1), (8000, 1), (SMALL, 3), (100 * SMALL + 7, 20)])
def test_a_size_costs_few_requests_on_object_stores(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = open_store("memory://sizes"), list[tuple[object, ...]]()
    store.put_if_absent("k", bytes(size))
    get = store.get
    monkeypatch.setattr(store, "get", lambda *place: asked.append(place) or get(*place))
    assert (store.size("k"), len(asked) <= most) == (size, True)


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        *((0, 0), (0, 3), (3, 7), (9, 10), (10, 11), (50, 60), (4, None), (8, 20), (None, 4), (10, None), (11, None)),
        *((-1, None), (-10, None), (-11, None)),
    ],
)
def test_ranges_are_clipped_as_slices(store: Store, start: int | None, stop: int | None) -> None:
    store.put_if_absent("k", b"0123456789")
    assert store.get("k", start, stop) == b"0123456789"[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (None, -1), (-2, -1), (3, 2)])
def test_ranges_that_are_none(store: Store, start: int | None, stop: int | None) -> None:
    with pytest.raises(CallError, match="range of bytes of k"):
        store.get("k", start, stop)


def test_listing_is_sorted_as_text(store: Store) -> None:
    keys = ["a-b/c", "a.b", "a/b.json", "a/c/d", "a0", "b"]
    for key in reversed(keys):
        store.put_if_absent(key, b"x")
    assert list(store.list()) == keys
    assert list(store.list("a/")) == ["a/b.json", "a/c/d"]
    assert list(store.list("a")) == keys[:-1]
    assert store.children("") == ["a", "a-b", "a.b", "a0", "b"]
    assert store.children("a/") == ["b.json", "c"]


def test_delete_prefix_takes_the_directory_only(store: Store) -> None:
    for key in ("a/1", "a/b/2", "ab/3", "a.4"):
        store.put_if_absent(key, b"x")
    assert store.delete_prefix("a/") == 2
    assert store.delete_prefix("a/") == 0
    assert list(store.list()) == ["a.4", "ab/3"]
    assert store.put_if_absent("a/1", b"new") == b"new"
    with pytest.raises(CallError, match="needs a prefix"):
        store.delete_prefix("")


@pytest.mark.parametrize("key", BAD_KEYS)
def test_key_tricks_are_refused(store: Store, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.get(key),
        lambda: store.size(key),
        lambda: store.delete(key),
        lambda: store.list(f"{key}/x"),
        lambda: store.delete_prefix(f"{key}/x/"),
        lambda: store.children(f"{key}/x/"),
        lambda: store.sync(f"{key}/x/"),
        lambda: store.kvstore(f"{key}/x/"),
    ]
    for call in calls:
        with pytest.raises(InvalidRecord):
            call()
    assert list(store.list()) == []


def test_kvstore_is_a_database_below_the_prefix(store: Store) -> None:
    opened = ts.KvStore.open(store.kvstore("state/ranks/0/"), context=store.context).result()
    opened.write("d/1", b"data").result()
    store.sync("state/")
    assert list(store.list("state/")) == ["state/ranks/0/d/1"]
    assert store.get("state/ranks/0/d/1") == b"data"


Operation = tuple[str, str, bytes]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "delete", "delete_prefix"]),
            st.sampled_from(["a", "a/b", "a/b/c", "a-b", "a.b/c", "d/e", "d/e-f", "d/e/f/g"]),
            st.binary(max_size=5),
        ),
        max_size=12,
    )
)
def test_memory_and_files_do_as_a_dictionary(operations: list[Operation]) -> None:
    """Only where no key is also a directory: file systems cannot hold both."""
    model: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as directory:
        stores: list[Store] = [open_store(f"{directory}/run"), open_store("memory://m")]
        for action, name, data in operations:
            key = f"{name}.json"
            if action == "put":
                expected = model.setdefault(key, data)
                assert [each.put_if_absent(key, data) for each in stores] == [expected] * 2
            elif action == "delete":
                model.pop(key, None)
                for each in stores:
                    each.delete(key)
            else:
                below = [other for other in model if other.startswith(f"{name}/")]
                assert [each.delete_prefix(f"{name}/") for each in stores] == [len(below)] * 2
                model = {other: value for other, value in model.items() if other not in below}
            for each in stores:
                assert {found: each.get(found) for found in each.list()} == model
                assert list(each.list()) == sorted(model)


# URLs


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("/data/run", "file:///data/run"),
        ("/data/a b/../c%d/", "file:///data/c%25d"),
        ("file:///data/a%20b/run", "file:///data/a%20b/run"),
        ("file://localhost/data/run/", "file:///data/run"),
        (Path("/data/run"), "file:///data/run"),
        (Path("/data/s3:/x"), "file:///data/s3%3A/x"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket", "gs://bucket"),
        ("memory://a/b", "memory://a/b"),
    ],
)
def test_canonical_urls(url: str | Path, canonical: str) -> None:
    store = open_store(url, Storage(region="us-east-1", credentials={"type": "anonymous"}) if str(url).startswith("s3") else None)
    assert store.url == canonical
    assert store.driver == canonical.partition(":")[0]


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("runs/1").url == f"file://{tmp_path}/runs/1"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "/",
            "a\0b",
            "http://x/y",
            "s3:/bucket/x",
            "file:/data/x",
            "file://host/tmp",
            "file:///a?b",
            "file:///a#b",
            "file://",
        ),
        *(
            "s3://",
            "s3:///x",
            "s3://user@bucket/x",
            "s3://bucket/a//b",
            "s3://bucket/../x",
            "s3://bucket/a?b",
            "gs://b/a%2e",
            "memory://",
        ),
    ],
)
def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(CallError):
        open_store(url)


def test_gs_takes_no_s3_settings() -> None:
    with pytest.raises(CallError, match="TENSORSTORE_GCS_HTTP_URL"):
        open_store("gs://bucket/run", Storage(endpoint="http://localhost:1"))


def test_s3_writes_are_conditional_with_any_endpoint() -> None:
    storage = Storage(endpoint="http://localhost:1", region="x", credentials={"type": "anonymous"}, concurrency=3)
    spec = open_store("s3://bucket/run", storage).kvstore("state/")
    assert spec["use_conditional_write"] is True
    assert (spec["endpoint"], spec["path"]) == ("http://localhost:1", "run/state/")
    assert "anonymous" not in repr(storage)


def test_memory_is_shared_through_the_context() -> None:
    storage = Storage(context=ts.Context())
    open_store("memory://a", storage).put_if_absent("k", b"x")
    assert open_store("memory://a", storage).get("k") == b"x"
    assert open_store("memory://b", storage).get("k") is None
    assert open_store("memory://a").get("k") is None


# Errors of TensorStore


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("UNAVAILABLE: HTTP response code 503", StoreUnavailable),
        ("ABORTED: All 3 retry attempts failed: connection refused", StoreUnavailable),
        ("something nobody has seen yet", StoreUnavailable),
        ("PERMISSION_DENIED: no", StoreError),
        ("NOT_FOUND: no such bucket", StoreError),
        ("UNAVAILABLE: XMinioStorageFull", StoreFull),
        ("RESOURCE_EXHAUSTED: QuotaExceeded", StoreFull),
    ],
)
def test_translation(text: str, error: type[StoreError]) -> None:
    assert type(translate(ValueError(text))) is error


@pytest.mark.usefixtures("impatient")
def test_store_that_does_not_answer_names_the_key() -> None:
    context = ts.Context({"s3_request_retries": {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"}})
    storage = Storage(endpoint="http://127.0.0.1:9", region="x", credentials={"type": "anonymous"}, context=context)
    store = open_store("s3://bucket/run", storage)
    with pytest.raises(StoreUnavailable, match=r"put ledger/a\.json in s3://bucket/run.*outcome is unknown"):
        store.put_if_absent("ledger/a.json", b"x")


class LostAnswer:
    """A TensorStore kvstore whose write is applied, and answered with "lost" or an error."""

    def __init__(self, real: ts.KvStore, answer: Exception | None) -> None:
        self.read = real.read
        self._real = real
        self._answer = answer

    def write(self, key: str, value: bytes, **conditions: Any) -> ts.Future[Any]:
        self._real.write(key, value, **conditions).result()
        if self._answer is not None:
            promise, future = ts.Promise.new()
            promise.set_exception(self._answer)
            return future
        return self._real.write(key, value, **conditions)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answer", [None, ValueError("UNAVAILABLE: 503")])
def test_conditional_write_whose_answer_is_lost_is_ours(answer: Exception | None) -> None:
    store = open_store("memory://a")
    assert isinstance(store, ObjectStore)
    store._root = LostAnswer(store._root, answer)  # pyright: ignore[reportAttributeAccessIssue]
    assert store.put_if_absent("k", b"mine") == b"mine"
    assert store.put_if_absent("k", b"other") == b"mine"


# Retrying


def test_retry_gives_up_and_names_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.0)
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        raise StoreUnavailable("503")

    with pytest.raises(StoreUnavailable, match=r"put k: failed 5 time\(s\).*503"):
        retry.retry(call, what="put k", timeout=60, clock=Clock())
    assert len(calls) == 5


@pytest.mark.parametrize("refusal", [StoreFull("507"), StoreError("403"), UnsafeStore("no generation")])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_refusal_is_the_outcome_of_the_first_try_only(
    monkeypatch: pytest.MonkeyPatch, earlier: int, refusal: StoreError
) -> None:
    """A try without an answer may be applied late: what the next one is told is not what became of it."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.0)
    errors = [*[StoreUnavailable("503")] * earlier, refusal]
    expected = StoreUnavailable if earlier else type(refusal)

    def call() -> None:
        raise errors.pop(0)

    with pytest.raises(expected) as caught:
        retry.retry(call, what="put k", timeout=60, clock=Clock())
    assert type(caught.value) is expected


def test_retry_does_not_outlast_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 1e6)

    def call() -> None:
        raise StoreUnavailable("503")

    with pytest.raises(StoreUnavailable, match=r"failed 1 time\(s\)"):
        retry.retry(call, what="put k", timeout=60, clock=Clock())


@pytest.mark.parametrize("path", ["", "a\0b", b"/tmp/\xff"])
def test_what_is_no_path_is_refused_at_once(path: str | bytes) -> None:
    with pytest.raises(CallError, match="is not a path"):
        open_store(path if isinstance(path, str) else os.fsdecode(path))
