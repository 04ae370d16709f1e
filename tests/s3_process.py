"""The process of an S3 server for tests: moto's, on a free port of the loopback interface, with everything in memory.

Prints `port N` when it listens. Run as `python -m tests.s3_process`; `tests/servers.py` does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Answer = Iterable[bytes]


class Handler(WSGIRequestHandler):
    """Keeps connections open, as S3 does, and writes no log line for what went well."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say only what went wrong with the server itself."""
        if str(code).startswith("5"):
            super().log_request(code, size)


class OneAtATime:
    """Serves one request after the other.

    moto looks whether a key exists and stores the object in two steps: of two threads both could win a conditional put.
    """

    def __init__(self, app: Callable[..., Answer]) -> None:
        self._app, self._lock = app, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        with self._lock:
            return self._app(environ, start_response)


def end_with_parent() -> None:
    """Standard input is a pipe that the parent holds: it ends when the parent does, however that came."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve until the process is killed, or its parent is."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    server = make_server("127.0.0.1", 0, OneAtATime(create_backend_app("s3")), threaded=True, request_handler=Handler)
    print(f"port {server.server_port}", flush=True)  # noqa: T201 -- this is how the port is told
    server.serve_forever()


if __name__ == "__main__":
    main()
