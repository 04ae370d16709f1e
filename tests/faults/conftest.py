"""One S3 server for all tests of a process; each keeps to prefixes of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import S3, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server
