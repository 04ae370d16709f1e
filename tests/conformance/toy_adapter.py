"""An adapter of a toy: it keeps a JSON file instead of a checkpoint. Enough of ADAPTER.md to test the runner within milliseconds.

The toy takes the request's `run_id` as an order: `hang`, `crash`, `cannot`, `garble`, `leave`; and its server `die`. Arguments
of the form `--key=JSON` change what it says of itself.
"""

# ruff: noqa: T201 -- printing is how an adapter answers

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DESCRIBE = {
    "contract": 1, "name": "toy", "version": "1", "framework": "none", "format": "1.0", "verbs": ["save", "latest", "restore"],
    "failpoints": ["before-data"], "features": ["values"], "dtypes": ["float32"], "devices_per_process": 1, "stores": ["file"],
    "serve": True,
}  # fmt: skip


def main() -> int:
    if "--serve" in sys.argv:
        return serve()
    return act(json.loads(sys.stdin.read()))


def act(request: dict[str, Any]) -> int:
    if request["verb"] == "describe":
        changes = [word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word]
        return answer({**DESCRIBE, **{key: json.loads(text) for key, text in changes}})
    print("a greeting")
    print(f"rank {request['rank']} of {request['processes']}", file=sys.stderr)
    failpoint = request.get("failpoint") or {}
    if failpoint.get("rank") == request["rank"] and "step" not in failpoint:  # the toy comes to no step's moments
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[failpoint["action"]])
    order = request.get("run_id")
    if order == "hang":
        signal.pause()
    if order == "leave":
        return answer({"left": subprocess.Popen(["/bin/sleep", "600"]).pid})
    if order == "crash":
        raise RuntimeError("as ordered")
    if order == "cannot":
        return answer({"message": "toys cannot"}, 11)
    if order == "garble":
        print("{")
        return 0
    return {"save": save, "latest": latest}[request["verb"]](request)


def save(request: dict[str, Any]) -> int:
    steps = [entry["step"] for entry in request["saves"]]
    if any(step > 100 for step in steps):
        return answer({"error": "call", "message": "too large"}, 10)
    if request["rank"] == 0:
        file = Path(urlsplit(request["store"]).path, "toy.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(steps[-1]))
    return answer({"saves": [{"outcome": "committed", "pid": os.getpid()} for _ in steps]})


def latest(request: dict[str, Any]) -> int:
    file = Path(urlsplit(request["store"]).path, "toy.json")
    return answer({"step": json.loads(file.read_text()) if file.exists() else None})


def answer(value: dict[str, Any], status: int = 0) -> int:
    print(json.dumps(value), flush=True)
    return status


def serve() -> int:
    """One process a line, forked; the end of each is reported by a keeper."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("a greeting that is no report", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if json.loads(Path(order["request"]).read_text()).get("run_id") == "die":
            print("dying as ordered", file=sys.stderr)
            return 3
        if os.fork() == 0:
            keep(order)
    return 0


def keep(order: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        for number, (name, mode) in enumerate(
            (("request", os.O_RDONLY), ("output", os.O_WRONLY | os.O_CREAT), ("log", os.O_WRONLY | os.O_CREAT))
        ):
            os.dup2(os.open(order[name], mode), number)
        sys.stdin = os.fdopen(0)
        try:
            status = act(json.loads(sys.stdin.read()))
        except Exception as error:  # noqa: BLE001 - as a traceback would end it
            os.write(2, f"{error!r}\n".encode())
            status = 1
        sys.stdout.flush()
        os._exit(status)
    os.write(1, json.dumps({"id": order["id"], "pid": child}).encode() + b"\n")
    _, status = os.waitpid(child, 0)
    os.write(1, json.dumps({"id": order["id"], "status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
