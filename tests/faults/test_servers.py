"""The servers that other tests rely on do what those tests take for granted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore.store import Storage, open_store
from tests.servers import PAGE, REGION, S3


def test_the_bucket_holds_what_a_store_puts(s3: S3, tmp_path: Path) -> None:
    store = open_store(s3.url("some/run"), s3.storage)
    assert store.put_if_absent("ledger/a", b"x") == b"x"
    assert store.put_if_absent("ledger/a", b"y") == b"x"
    assert s3.objects("some/") == {"run/ledger/a": b"x"}
    assert (s3.download("some/run/", tmp_path) / "ledger" / "a").read_bytes() == b"x"


def test_more_objects_than_a_page_are_all_seen(s3: S3) -> None:
    for number in range(PAGE + 1):
        s3.put(f"pages/n/{number}", b"")
    assert len(s3.objects("pages/n/")) == PAGE + 1


def test_credentials_are_found_in_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(s3.url("environment"), Storage(endpoint=s3.endpoint, region=REGION))
    assert store.put_if_absent("a", b"x") == b"x"
