"""A proxy before an HTTP server that loses, delays and falsifies what passes through it, as it is told.

A script says for each request what becomes of it. Everything that the server was asked and answered is kept.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

Fault = Literal["pass", "lost answer", "refused", "late", "truncated", "no list", 409, 412, 500, 503, "then 409", "then 412"]
"""`lost answer`: forwarded, then the connection is reset. `refused`: reset before that. `late`: the client is let go of after
`Proxy.lateness` seconds, and only then it is forwarded. `truncated`: half of the answer's body. `no list`: an empty listing. A
number: answered by the proxy. `then N`: forwarded, and then answered by the proxy."""

EMPTY_LIST = b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>'


@dataclass(frozen=True)
class Request:
    """One request as the client made it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The object's key, without the bucket; empty for a listing."""
        return unquote(urlsplit(self.target).path).strip("/").partition("/")[2]

    @property
    def lists(self) -> bool:
        """Whether it asks for a listing."""
        return "list-type=" in self.target


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


Script = Callable[[Request], Fault]


@dataclass
class Proxy:
    """A running proxy. `script` may be exchanged at any time; None passes everything on.

    Attributes:
      server: host and port of the server behind it.
      done: each request that the server has answered, with the answer; and what the client got instead, if not that.

    """

    server: str
    endpoint: str = ""
    script: Script | None = None
    lateness: float = 1.0
    settled: threading.Event = field(default_factory=threading.Event)
    done: list[tuple[Request, Answer, Fault]] = field(default_factory=list)
    faults: list[tuple[Request, Fault]] = field(default_factory=list)
    _pending: list[threading.Thread] = field(default_factory=list)

    def forward(self, request: Request, fault: Fault) -> Answer:
        """Ask the server."""
        connection = http.client.HTTPConnection(self.server, timeout=30)
        try:
            connection.request(request.method, request.target, request.body, {**request.headers, "Connection": "close"})
            got = connection.getresponse()
            answer = Answer(got.status, got.getheaders(), got.read())
        finally:
            connection.close()
        self.done.append((request, answer, fault))
        return answer

    def later(self, request: Request) -> None:
        """Forward when the client has given up; nobody gets the answer."""
        thread = threading.Thread(target=self._forward_late, args=(request,))
        thread.start()
        self._pending.append(thread)  # by now somebody may wait for it

    def settle(self) -> None:
        """Let everything that is late reach the server now, and what comes later at once."""
        self.settled.set()
        while self._pending:
            self._pending.pop().join()

    def puts(self, ending: str) -> list[tuple[int, bytes]]:
        """The statuses and bodies of the puts that reached the server, of keys with this ending."""
        return [
            (answer.status, request.body)
            for request, answer, _ in self.done
            if request.method == "PUT" and request.key.endswith(ending)
        ]

    def _forward_late(self, request: Request) -> None:
        self.settled.wait(self.lateness)
        self.forward(request, "late")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(self.command, self.path, dict(self.headers.items()), self.rfile.read(length))
        fault = self.proxy.script(request) if self.proxy.script else "pass"
        if fault != "pass":
            self.proxy.faults.append((request, fault))
        if isinstance(fault, int):
            self._answer(Answer(fault, [], b""))
        elif fault == "late":
            self.proxy.later(request)
            self.proxy.settled.wait(self.proxy.lateness)
            self._reset()
        elif fault == "refused":
            self._reset()
        else:
            self._forwarded(request, fault)

    def _forwarded(self, request: Request, fault: Fault) -> None:
        answer = self.proxy.forward(request, fault)
        if fault == "lost answer":
            self._reset()
        elif fault in ("then 409", "then 412"):
            self._answer(Answer(int(str(fault).removeprefix("then ")), [], b""))
        elif fault == "no list" and request.lists:
            self._answer(Answer(200, [("Content-Type", "application/xml")], EMPTY_LIST))
        else:
            self._answer(answer, truncated=fault == "truncated")

    def _answer(self, answer: Answer, *, truncated: bool = False) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        size = len(answer.body)
        if self.command == "HEAD":
            size = next((int(value) for name, value in answer.headers if name.lower() == "content-length"), 0)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(answer.body[: size // 2] if truncated else answer.body)
        self.close_connection = self.close_connection or truncated

    def _reset(self) -> None:
        """End the connection without a word."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is Python's
        """Say nothing: what happened is kept in `Proxy`."""

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _serve  # noqa: N815 -- the names are Python's


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is what this is for."""


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    """A proxy on a free port before the server at `endpoint`."""
    running = Proxy(urlsplit(endpoint).netloc)
    handler = type("Handler", (_Handler,), {"proxy": running})
    with _Server(("127.0.0.1", 0), handler) as server:
        running.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield running
        finally:
            running.settle()
            server.shutdown()
            thread.join()
