"""The process of an S3 server for tests: moto's, on a free port of the loopback interface, with everything in memory.

Prints `port N` when it listens. Run as `python -m tests.s3_process`; `tests/servers.py` does. Only the connections are served by
code of our own: werkzeug's server closes each one after a request, and moto takes a millisecond for what it was just asked.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import parse_qs, unquote

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.test import Client

CONDITIONS = ("range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
"""The headers on which the answer to a GET depends. Signatures are not checked."""


@dataclass(frozen=True)
class Request:
    """A request. The names of headers are in lower case; `target` is the path and the query as they were sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The bucket, or bucket and key, however they were written."""
        return unquote(self.target.partition("?")[0]).strip("/")


class Moto:
    """moto, asked one thing after the other, and nothing again whose answer is known.

    One after the other, since moto looks whether a key exists and stores the object in two steps: of two threads both could win a
    conditional put. What a GET of an object is answered changes only with another request for its path, a listing with
    one for a path that begins with its prefix.
    """

    def __init__(self) -> None:
        self._client, self._lock = Client(create_backend_app("s3"), use_cookies=False), threading.Lock()
        self._known: dict[str, dict[tuple[str | None, ...], bytes]] = {}

    def answer(self, request: Request) -> bytes:
        """Status, headers and body, as they are sent."""
        with self._lock:
            if request.method != "GET":
                self._forget(request.path)
                return self._ask(request)
            asked = (request.target, *map(request.headers.get, CONDITIONS))
            known = self._known.setdefault(request.path, {})
            if asked not in known:
                known[asked] = self._ask(request)
            return known[asked]

    def _forget(self, path: str) -> None:
        """What a request may change: an object and the listings that it is in; everything, if it names no object."""
        bucket, _, key = path.partition("/")
        if not key:
            self._known.clear()
        self._known.pop(path, None)
        listings = self._known.get(bucket, {})
        for asked in [asked for asked in listings if key.startswith(prefix_of(str(asked[0])))]:
            del listings[asked]

    def _ask(self, request: Request) -> bytes:
        said = self._client.open(request.target, method=request.method, headers=dict(request.headers), data=request.body)
        if said.status_code >= 500:
            print(request.method, request.target, said.status, said.text, file=sys.stderr, flush=True)  # noqa: T201 -- a log
        given = [(name, value) for name, value in said.headers if name.lower() != "content-length"]
        lines = [f"HTTP/1.1 {said.status}", *(f"{name}: {value}" for name, value in given)]
        length = said.headers.get("Content-Length", "0") if request.method == "HEAD" else str(len(said.data))
        return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode("latin-1") + said.data


def prefix_of(target: str) -> str:
    """What the keys of a listing begin with."""
    return parse_qs(target.partition("?")[2]).get("prefix", [""])[0]


class Connection(StreamRequestHandler):
    """A connection, which stays open until the client closes it, as S3's do."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Answer one request after the other. Nothing comes of one that did not arrive as a whole: its sender was killed."""
        with suppress(ConnectionError):
            while line := self.rfile.readline():
                self.wfile.write(self.server.moto.answer(self._request(line)))

    def _request(self, line: bytes) -> Request:
        method, target, _ = line.decode("latin-1").split()
        headers = dict(self._headers())
        if headers.pop("expect", None):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError
        return Request(method, target, headers, body)

    def _headers(self) -> Iterator[tuple[str, str]]:
        while (line := self.rfile.readline()) != b"\r\n":
            if not line.endswith(b"\r\n"):
                raise ConnectionAbortedError
            name, _, value = line.decode("latin-1").partition(":")
            yield name.lower(), value.strip()


class Server(ThreadingTCPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, moto: Moto) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.moto = moto


def end_with_parent() -> None:
    """Standard input is a pipe that the parent holds: it ends when the parent does, however that came."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve until the process is killed, or its parent is."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    server = Server(Moto())
    print(f"port {server.server_address[1]}", flush=True)  # noqa: T201 -- this is how the port is told
    server.serve_forever()


if __name__ == "__main__":
    main()
