"""What a record says of the machine: enough, and nothing that names it."""

import json
import platform
from pathlib import Path

from benchmarks import machine


def test_describes_hardware_and_versions(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0
    assert found["versions"]["numpy"]
    assert found["file_system"] != ""


def test_names_no_host_and_no_path(tmp_path: Path) -> None:
    text = json.dumps(machine.describe(tmp_path))
    assert str(tmp_path) not in text
    assert platform.node() not in text or len(platform.node()) < 4


def test_the_file_system_is_that_of_the_folder() -> None:
    if not Path("/proc/self/mountinfo").exists():
        assert machine.mounted(Path("/")) == ("unknown", "")
        return
    assert machine.mounted(Path("/proc/self"))[0] == "proc"
    assert machine.mounted(Path("/"))[0] != "proc"


def test_what_is_no_block_device_says_so() -> None:
    assert machine.device("") == "no block device"
    assert machine.device("0:999999") == "no block device"


def test_only_what_is_installed_has_a_version() -> None:
    assert list(machine.versions(("numpy", "no-such-package"))) == ["numpy"]


def test_the_sentence_has_everything(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    text = machine.sentence(found)
    assert f"{found['cores']} cores" in text
    assert f"numpy {found['versions']['numpy']}" in text
    assert text.endswith(".")
