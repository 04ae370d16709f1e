"""The servers that other tests rely on do what those tests take for granted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

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


# The server answers what it knows without asking moto, and keeps connections


def ask(connection: HTTPConnection, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture
def connection(s3: S3) -> Iterator[HTTPConnection]:
    with closing(HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=30)) as connection:
        yield connection


def test_a_connection_is_kept(connection: HTTPConnection) -> None:
    connection.connect()
    first = connection.sock
    for method, target in (
        ("GET", "/bucket/none"),
        ("PUT", "/bucket/kept"),
        ("HEAD", "/bucket/kept"),
        ("DELETE", "/bucket/kept"),
    ):
        ask(connection, method, target)
        assert connection.sock is first


def test_what_is_known_is_forgotten_when_it_changes(connection: HTTPConnection) -> None:
    listing = "/bucket?list-type=2&prefix=known%2F"
    assert ask(connection, "GET", "/bucket/known/a%3Db")[0] == 404
    assert b"<Key>" not in ask(connection, "GET", listing)[1]
    for body in (b"first", b"second one"):
        assert ask(connection, "PUT", "/bucket/known%2Fa=b", body)[0] == 200  # the same key, written otherwise
        assert ask(connection, "GET", "/bucket/known/a%3Db") == (200, body)
        assert ask(connection, "GET", "/bucket/known/a%3Db", Range="bytes=1-2") == (206, body[1:3])
        assert f"<Size>{len(body)}<" in ask(connection, "GET", listing)[1].decode()
    assert ask(connection, "PUT", "/bucket/known/a%3Db", b"third", If_None_Match="*")[0] == 412
    assert ask(connection, "GET", "/bucket/known/a%3Db") == (200, b"second one")
    assert ask(connection, "DELETE", "/bucket/known/a%3Db")[0] == 204
    assert ask(connection, "GET", "/bucket/known/a%3Db")[0] == 404
    assert b"<Key>" not in ask(connection, "GET", listing)[1]


def test_many_objects_deleted_at_once_are_forgotten(connection: HTTPConnection) -> None:
    ask(connection, "PUT", "/bucket/many/a", b"x")
    assert ask(connection, "GET", "/bucket/many/a")[0] == 200
    body = b"<Delete><Object><Key>many/a</Key></Object></Delete>"
    assert ask(connection, "POST", "/bucket?delete", body)[0] == 200
    assert ask(connection, "GET", "/bucket/many/a")[0] == 404


@pytest.mark.parametrize(
    "sent", [b"PUT /bucket/half HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345", b"PUT /bucket/half HTTP/1.1\r\nHost: x\r\n"]
)
def test_nothing_comes_of_half_a_request(s3: S3, connection: HTTPConnection, sent: bytes) -> None:
    """The process that sent it was killed."""
    place = urlsplit(s3.endpoint)
    with socket.create_connection((place.hostname, place.port), timeout=30) as killed:
        killed.sendall(sent)
        killed.shutdown(socket.SHUT_WR)
        assert killed.recv(100) == b""
    assert ask(connection, "GET", "/bucket/half")[0] == 404
