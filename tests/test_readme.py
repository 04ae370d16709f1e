"""The code in the README and in the documents for users does what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKING = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def blocks(language: str, document: str = "README.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def run(code: str) -> str:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_loop_resumes_and_can_be_read_beside(tmp_path: Path) -> None:
    places = {"/tmp/run-42": str(tmp_path / "run"), "/tmp/run-43": str(tmp_path / "torch")}
    code = [re.sub(r"/tmp/run-4\d", lambda found: places[found[0]], block) for block in blocks("python")]
    loop, torch_loop, reading, converting = code
    for program in (loop, torch_loop):
        told = program + "\nprint(restored.step, restored.generation, restored.guarantee)\n"
        assert run(told).splitlines() == ["from step 0", "0 None None"]
        assert run(told).splitlines() == ["from step 100", "100 000001-000000000100-1 exact"]
    run(converting)
    lines = run("import sys\n" + reading + "\nprint(weights['w'].shape, {'jax', 'torch'} & set(sys.modules))").splitlines()
    assert "000001-000000000100-1: the next start resumes from here" in lines[0]
    assert lines[1:] == ["True", "(3,) set()"]


def run_on_two(program: Path) -> subprocess.CompletedProcess[str]:
    """A program of two ranks. Without `python -u`, as torchrun starts it, each of them writes whole lines."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "--no-python", sys.executable, str(program)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_the_loop_for_torch_is_one_of_several_ranks_too(tmp_path: Path) -> None:
    _, loop, *_ = blocks("python")
    program = tmp_path / "train.py"
    program.write_text(loop.replace("/tmp/run-43", str(tmp_path / "run")))
    for begins in ("from step 0", "from step 100"):
        done = run_on_two(program)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [begins] * 2


@pytest.mark.slow
def test_the_loop_for_torch_without_its_line_for_several_ranks_is_told_what_it_lacks(tmp_path: Path) -> None:
    _, loop, *_ = blocks("python")
    alone = "\n".join(line for line in loop.splitlines() if "DistributedDataParallel" not in line)
    program = tmp_path / "train.py"
    program.write_text(alone.replace("/tmp/run-43", str(tmp_path / "run")))
    done = run_on_two(program)
    assert done.returncode == 1
    assert "differs between rank 0 and rank 1" in done.stderr
    assert "was DDP forgotten?" in done.stderr


@pytest.mark.slow
def test_the_guide_is_one_program(tmp_path: Path) -> None:
    four_devices = "import jax\njax.config.update('jax_num_cpu_devices', 4)\n"
    program = "".join(blocks("python", "docs/guide.md")).replace("/tmp/guide", str(tmp_path))
    told = run(four_devices + program)
    assert "this restore can keep 'coverage' only" in told
    assert "metrics={'loss'" in told
    assert "the next start resumes from here" in told


@pytest.mark.slow
def test_the_map_for_torch_is_one_program(tmp_path: Path) -> None:
    told = run("".join(blocks("python", "docs/torch.md")).replace("/tmp/torch", str(tmp_path)))
    assert "this restore can keep 'coverage' only" in told
    assert (tmp_path / "hf" / "model.safetensors").exists()


@pytest.mark.slow
def test_the_crossing_is_one_program(tmp_path: Path) -> None:
    told = run("".join(blocks("python", "docs/crossing.md")).replace("/tmp/crossing", str(tmp_path)))
    assert "cannot be converted to what the target is; 12 problems" in told
    frameworks = [record.read_text().count('"framework":"torch"') for record in sorted((tmp_path / "run" / "ledger").iterdir())]
    assert frameworks == [0, 1, 0]


def test_every_document_for_users_is_reached_from_the_guide() -> None:
    guide = ROOT / "docs" / "guide.md"
    others = {path.name for path in guide.parent.glob("*.md")} - {guide.name}
    assert others
    assert others - {target.partition("#")[0] for target in links(guide)} == set()


@pytest.mark.parametrize("document", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    for target in links(document):
        path, _, heading = target.partition("#")
        found = document.parent / path if path else document
        assert found.exists(), path
        assert not heading or heading in headings(found), heading


def test_there_are_links_to_check() -> None:
    assert {"README.md", "guide.md", "torch.md"} <= {path.name for path in LINKING if links(path)}


def links(document: Path) -> list[str]:
    """The targets of links within the project."""
    return re.findall(r"\]\((?!https:)([^)]+)", document.read_text())


def headings(document: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_commands_are_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for line in "\n".join(blocks("sh")).splitlines() if line.startswith("make ")}
    assert named == {"demo", "test"}
    assert named <= targets
