"""Put-if-absent on a file system: races, crashes, full disks and hostile directories."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from ckptcore import retry
from ckptcore.errors import InvalidRecord, StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.filestore import FileStore
from ckptcore.store import Storage, open_store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(str(tmp_path / "run"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.0)


def python(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a script as a process of its own that talks over pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def everything(root: str) -> list[str]:
    """All files below a directory, hidden ones too."""
    return [f"{path}/{name}" for path, _, names in os.walk(root) for name in names]


# Races and crashes on a file system

RACER = """
import json, sys
from ckptcore.store import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([store.put_if_absent(f"ledger/{n}", sys.argv[2].encode() * int(sys.argv[2])).decode() for n in range(20)]))
"""


def test_racing_processes_agree_on_one_winner_a_key(files: FileStore) -> None:
    racers = [python(RACER, files.root, number) for number in range(1, 7)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    stored = [(files.get(f"ledger/{number}") or b"").decode() for number in range(20)]
    assert answers == [stored] * 6
    assert set(stored) <= {str(number) * number for number in range(1, 7)}
    assert len(everything(files.root)) == 20


KILLED = """
import os, sys
from ckptcore.store import open_store
store = open_store(sys.argv[1])
def stop(*arguments, **options):
    print("there", flush=True)
    sys.stdin.read()
store.put_if_absent("ledger/before", b"x")
setattr(os, sys.argv[2], stop)
store.put_if_absent("ledger/x", b"of the killed " * 1000)
"""


def kill_in(call: str, root: str) -> None:
    process = python(KILLED, root, call)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_killed_before_the_link_leaves_nothing_visible(files: FileStore, call: str) -> None:
    kill_in(call, files.root)
    assert len(everything(files.root)) == 2
    assert files.get("ledger/x") is None
    assert list(files.list()) == ["ledger/before"]
    assert files.children("ledger/") == ["before"]
    assert files.put_if_absent("ledger/x", b"short") == b"short"
    assert files.get("ledger/x") == b"short"


def test_killed_after_the_link_has_written_all(files: FileStore) -> None:
    kill_in("unlink", files.root)
    assert files.put_if_absent("ledger/x", b"short") == b"of the killed " * 1000
    assert list(files.list()) == ["ledger/before", "ledger/x"]
    assert files.delete_prefix("ledger/") == 3
    assert everything(files.root) == []
    assert not Path(files.root, "ledger").exists()


FULL = """
import resource, sys
from ckptcore.errors import StoreFull
from ckptcore.store import open_store
store = open_store(sys.argv[1])
store.put_if_absent("ledger/small", b"x")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.put_if_absent("ledger/big", b"y" * 5000)
except StoreFull as error:
    print(error)
store.put_if_absent("ledger/after", b"z")
"""


def test_full_disk_shows_nothing_and_the_next_put_works(files: FileStore) -> None:
    message, _ = python(FULL, files.root).communicate(timeout=60)
    assert "put ledger/big" in message
    assert "Make room" in message
    assert list(files.list()) == ["ledger/after", "ledger/small"]
    assert len(everything(files.root)) == 2


def fails(code: int, times: int = 1_000) -> Callable[..., Any]:
    """A system call that fails `times` times, then does nothing."""
    calls = iter(range(times))

    def call(*_arguments: object, **_options: object) -> None:
        if next(calls, None) is not None:
            raise OSError(code, os.strerror(code))

    return call


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("call", ["write", "fsync", "link", "mkdir"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreError),
        (errno.EACCES, StoreError),
        (errno.EIO, StoreUnavailable),
        (errno.ESTALE, StoreUnavailable),
    ],
)
def test_failing_calls_have_an_error_of_their_own(
    files: FileStore, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[StoreError]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails(code))
        with pytest.raises(error, match=r"put ledger/a\.json") as raised:
            files.put_if_absent("ledger/a.json", b"x")
    assert type(raised.value) is error
    assert everything(files.root) == []
    assert files.put_if_absent("ledger/a.json", b"x") == b"x"


@pytest.mark.usefixtures("impatient")
def test_a_passing_failure_is_retried(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    flaky = fails(errno.EIO, times=2)

    def link(source: str, target: str) -> None:
        flaky()
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert files.put_if_absent("a", b"x") == b"x"
    assert everything(files.root) == [f"{files.root}/a"]


@pytest.mark.usefixtures("impatient")
def test_link_whose_answer_is_lost_is_ours(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost, and then meets its own link."""
    real = os.link

    def link(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", link)
    assert files.put_if_absent("a", b"x") == b"x"


@pytest.mark.usefixtures("impatient")
def test_failed_directory_sync_is_unknown_and_resolved_by_repeating(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put_if_absent("ledger/before", b"x")
    real = os.fsync
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 1:  # the first one is of the value itself
            raise OSError(errno.ENOSPC, "no space")
        real(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fsync)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            files.put_if_absent("ledger/a", b"x")
    assert files.put_if_absent("ledger/a", b"y") == b"x"


@pytest.mark.usefixtures("impatient")
def test_directory_that_vanishes_is_made_again(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection may remove the empty directory of a late writer at any moment."""
    real = os.mkdir
    made: list[str] = []

    def mkdir(path: str) -> None:
        real(path)
        made.append(path)
        if made == [files.root, f"{files.root}/a"]:
            Path(path).rmdir()

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert files.put_if_absent("a/b", b"x") == b"x"
    assert made == [files.root, f"{files.root}/a", f"{files.root}/a"]


def test_put_syncs_value_then_directories_up_to_the_parent_of_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_fsync, real_link, real_unlink = os.fsync, os.link, os.unlink

    def fsync(descriptor: int) -> None:
        name = os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path)
        events.append("value" if ".tmp-" in name else name)
        real_fsync(descriptor)

    def link(source: str, target: str) -> None:
        events.append("link")
        real_link(source, target)

    def unlink(path: str) -> None:
        events.append("unlink")
        real_unlink(path)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name descriptors")
    store = FileStore(str(tmp_path / "new" / "run"))
    for name, call in (("fsync", fsync), ("link", link), ("unlink", unlink)):
        monkeypatch.setattr(os, name, call)
    store.put_if_absent("a/b/c", b"x")
    after = ["new/run/a/b", "new/run/a", "new/run", "new"]
    assert events == [".", "new", "new/run", "new/run/a", "value", "link", *after, "unlink"]
    events.clear()
    store.put_if_absent("a/b/c", b"other")  # the winner may have died before it synced
    assert events == after


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_without_hard_links_only_a_single_writer_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "link", fails(code))
    with pytest.raises(UnsafeStore, match="single_writer=True"):
        open_store(tmp_path / "many").put_if_absent("a", b"x")
    store = open_store(tmp_path / "one", Storage(single_writer=True))
    assert store.put_if_absent("a", b"x") == b"x"
    assert store.put_if_absent("a", b"yy") == b"x"
    assert len(everything(str(tmp_path / "one"))) == 1


def test_modes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "run", Storage(file_mode=0o640, dir_mode=0o750))
    store.put_if_absent("a/b", b"x")
    ts.KvStore.open(store.kvstore("state/d/"), context=store.context).result().write("k", b"x").result()
    store.sync("state/")
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    assert modes == {"run/a": 0o750, "run/a/b": 0o640, "run/state": 0o750, "run/state/d": 0o750, "run/state/d/k": 0o640}


# Hostile directories


def test_symbolic_links_are_refused(files: FileStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    files.put_if_absent("ledger/a", b"x")
    Path(files.root, "generations").symlink_to(outside)
    Path(files.root, "ledger", "b").symlink_to(outside / "secret")
    calls: list[Callable[[], object]] = [
        lambda: files.get("generations/secret"),
        lambda: files.size("generations/secret"),
        lambda: files.put_if_absent("generations/new", b"x"),
        lambda: files.delete("generations/secret"),
        lambda: files.delete_prefix("generations/"),
        lambda: files.children("generations/"),
        lambda: files.list("generations/"),
        lambda: files.sync("generations/"),
        lambda: files.kvstore("generations/x/"),
        lambda: files.get("ledger/b"),
        lambda: files.size("ledger/b"),
        lambda: files.put_if_absent("ledger/b", b"x"),
    ]
    for call in calls:
        with pytest.raises(UnsafeStore, match="link"):
            call()
    assert list(files.list()) == ["generations", "ledger/a", "ledger/b"]
    files.delete_prefix("ledger/")
    files.delete("generations")
    assert list(files.list()) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_special_files_neither_hang_nor_read(files: FileStore) -> None:
    files.put_if_absent("ledger/a", b"x")
    os.mkfifo(f"{files.root}/ledger/pipe")
    for call in (files.get, files.size):
        with pytest.raises(UnsafeStore, match="neither a file nor a directory"):
            call("ledger/pipe")


def test_a_database_is_opened_only_where_everything_is_a_file(files: FileStore) -> None:
    """TensorStore itself would follow links and wait for a FIFO."""
    files.put_if_absent("state/d/0123", b"x")
    assert files.kvstore("state/")["path"] == f"{files.root}/state/"
    assert files.kvstore("absent/")["path"] == f"{files.root}/absent/"
    os.mkfifo(f"{files.root}/state/d/.hidden")
    with pytest.raises(UnsafeStore, match=r"state/d/\.hidden is neither a file nor a directory"):
        files.kvstore("state/")


def test_files_that_vanish_while_a_directory_is_looked_at_are_none(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a listing does not tell kinds (`d_type`), a temporary file that is gone looks like neither."""

    class Gone:
        path = f"{files.root}/state/gone"

        def is_dir(self, **_: object) -> bool:
            return False

        is_file = is_dir

    files.put_if_absent("state/a", b"x")
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext([Gone()]))
    assert files.kvstore("state/")["path"]


def test_a_value_without_end_is_refused_by_a_put(files: FileStore) -> None:
    files.put_if_absent("ledger/a", b"x")
    os.truncate(f"{files.root}/ledger/a", 1 << 40)
    with pytest.raises(InvalidRecord, match=r"ledger/a: more than"):
        files.put_if_absent("ledger/a", b"y")


def test_foreign_files_are_not_listed(files: FileStore) -> None:
    files.put_if_absent("ledger/a", b"x")
    for name in (".nfs0001", "b~ copy", "c.__lock", "é"):
        Path(files.root, "ledger", name).write_bytes(b"x")
    assert list(files.list()) == ["ledger/a"]
    assert files.children("ledger/") == ["a"]
    assert files.delete_prefix("ledger/") == 5


def test_file_in_the_place_of_a_directory(files: FileStore) -> None:
    files.put_if_absent("a", b"x")
    assert files.get("a/b") is None
    assert files.size("a/b") is None
    with pytest.raises(StoreError, match="put a/b"):
        files.put_if_absent("a/b", b"x")
    files.put_if_absent("d/e", b"x")
    assert files.get("d") is None
    files.delete("d")
    assert files.get("d/e") == b"x"


def test_a_directory_in_the_place_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "run")
    (tmp_path / "run" / "ledger" / "x.json").mkdir(parents=True)
    with pytest.raises(UnsafeStore, match=r"ledger/x\.json is a directory"):
        store.put_if_absent("ledger/x.json", b"1")
