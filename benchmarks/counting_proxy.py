"""An HTTP proxy between TensorStore and an S3 server, which keeps a record of every call.

Each caller (a rank, a command) has an address of its own, so that the calls need not be told apart by what they say. A
latency may be added to each, so that polling meets a store that is as slow as a real one.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

METHODS = ("GET", "HEAD", "PUT", "LIST", "DELETE")
"""The methods that are told apart. A listing is a GET to the server, and has a price of its own."""
TIMEOUT = 60.0

_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"run\.json$", "run"),
        (r"incarnations/\d+/claim", "claim"),
        (r"incarnations/\d+/base", "base"),
        (r"ledger/.*\.retired\.json$", "retired record"),
        (r"ledger/.*\.json$", "ledger"),
        (r"notes/.", "note"),
        (r"probe/.", "probe"),
        (r"generations/[^/]+/layouts/.", "layout"),
        (r"generations/[^/]+/values/.", "values"),
        (r"generations/[^/]+/receipts/.", "receipt"),
        (r"generations/[^/]+/staged/.", "staged receipt"),
        (r"generations/[^/]+/index/.", "index"),
        (r"generations/[^/]+/roster-", "roster"),
        (r"generations/[^/]+/state/ranks/[^/]+/manifest\.ocdbt$", "manifest"),
        (r"generations/[^/]+/state/ranks/[^/]+/d/.", "data"),
        (r"generations/[^/]+/state/(manifest\.ocdbt$|d/.)", "merged view"),
        (r"generations/[^/]+/state/", "for Orbax"),
    )
)


def kind_of(key: str) -> str:
    """What an object of a run is, by its key below the run's root."""
    return next((kind for pattern, kind in _KINDS if pattern.match(key)), "other")


def listed(prefix: str) -> str:
    """What a listing below a run's root is of."""
    parts = [part for part in prefix.split("/") if part]
    if parts[:1] == ["generations"] and len(parts) > 1:
        return f"list of a generation's {parts[2]}" if len(parts) > 2 else "list of a generation"
    return f"list of {parts[0]}" if parts else "list of the run"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, as the client made it. `sent` and `received` are bytes of the bodies, `at` seconds on a monotonic clock."""

    caller: str
    method: str
    kind: str
    key: str
    status: int
    sent: int
    received: int
    at: float


@dataclass
class CountingProxy:
    """A running proxy. `latency`: seconds that every call is held back; it may be changed at any time.

    Attributes:
      server: host and port of the server behind it.
      root: the bucket and the prefix below which the runs lie; keys are told without it and without the run's own name.

    """

    server: str
    root: str
    latency: float = 0.0
    calls: list[Call] = field(default_factory=list)
    _callers: dict[str, _Server] = field(default_factory=dict)

    def endpoint(self, caller: str) -> str:
        """The address of one caller, made when it is first asked for."""
        if caller not in self._callers:
            handler = type("Handler", (_Handler,), {"proxy": self, "caller": caller})
            server = self._callers[caller] = _Server(("127.0.0.1", 0), handler)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{self._callers[caller].server_address[1]}"

    def close(self) -> None:
        """Stop to listen."""
        for server in self._callers.values():
            server.shutdown()
            server.server_close()

    def taken(self) -> list[Call]:
        """All calls since the last time that this was asked."""
        calls, self.calls = self.calls, []
        return calls

    def note(self, caller: str, method: str, target: str, *, status: int, sent: int, received: int) -> None:
        """Keep one call."""
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        lists = method == "GET" and "list-type" in query
        key = self._below_root(query.get("prefix", [""])[0] if lists else unquote(parts.path).lstrip("/").partition("/")[2])
        kind = listed(key) if lists else kind_of(key) if key else "bucket"
        told = {"status": status, "sent": sent, "received": received, "at": time.monotonic()}
        self.calls.append(Call(caller=caller, method="LIST" if lists else method, kind=kind, key=key, **told))

    def _below_root(self, key: str) -> str:
        """The key without the runs' prefix and the run's name, which is one segment."""
        return key.removeprefix(self.root).partition("/")[2] if key.startswith(self.root) else key


def by_method(calls: list[Call]) -> dict[str, int]:
    """How many calls of each method there were."""
    counted = Counter(call.method for call in calls)
    return {method: counted[method] for method in METHODS}


def by_kind(calls: list[Call]) -> dict[str, int]:
    """How many calls there were of each method for each kind of key, most first."""
    return dict(Counter(f"{call.method} {call.kind}" for call in calls).most_common())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away, which happens when a store is closed."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one of its own to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer in one packet
    proxy: CountingProxy
    caller: str

    def setup(self) -> None:
        super().setup()
        self.behind = http.client.HTTPConnection(self.proxy.server, timeout=TIMEOUT)

    def finish(self) -> None:
        self.behind.close()
        super().finish()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(self.proxy.latency)
        answer, received = self._ask(body)
        told = {"status": answer.status, "sent": len(body), "received": 0 if self.command == "HEAD" else len(received)}
        self.proxy.note(self.caller, self.command, self.path, **told)
        self._answer(answer, received)

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        self.behind.request(self.command, self.path, body, dict(self.headers.items()))
        answer = self.behind.getresponse()
        return answer, answer.read()

    def _answer(self, answer: http.client.HTTPResponse, body: bytes) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is Python's
        """Say nothing: what happened is kept in `CountingProxy.calls`."""

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _serve  # noqa: N815 -- the names are Python's


@contextmanager
def counting_proxy(endpoint: str, root: str = "runs/") -> Iterator[CountingProxy]:
    """A proxy before the S3 server at `endpoint`, for runs at `s3://<bucket>/<root><name>`."""
    running = CountingProxy(urlsplit(endpoint).netloc, root)
    try:
        yield running
    finally:
        running.close()
