"""Rules about the source itself: what may import what, how long a file may be, what no file may do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Who may import whom, lowest first. A module imports from the rows above its own only; a package
# from the packages above it, whatever the row.
LAYERS: dict[str, list[str]] = {
    "ckptcore": [
        "clock errors formats.__init__ inspect.__init__ inspect.failures inspect.statistics monitor.__init__ ocdbt",
        "operate.__init__ placement workers",
        "canonical channel components convert.hyper convert.naming dtypes geometry hostrandom interval launch limits",
        "names posix preemption retry sampler wire",
        "arguments convert.axes convert.optax_state events formats.boxes_in_files formats.renames",
        "formats.safetensors_header nested schedule sharewire storekeys structs values",
        "attempt_structs cadence convert.rules filestore heartbeat objectstore plain",
        "convert.pairing records signals store",
        "digests guarantees handle keep layout phases probe readable schemas storereads",
        "array_spec backend convert.shown inspect.leaves inspect.runs leafunion ledger operate.transfer orbax_view",
        "array_locations array_merge array_ranges array_sinks convert.modules convert.torch_state convert.view",
        "formats.hosting formats.orbax_folder formats.orbax_metadata match notes restored shareplan union",
        "array_results array_writer convert.optimizers formats.foreign formats.orbax_chunks history nodes restore wants",
        "array_reader attempts chosen convert.conversion copywire formats.fresh_folder formats.orbax_source",
        "formats.safetensors inspect.findings listing sharing",
        "arrays convert.directions copies formats.safetensors_export inspect.incidents inspect.unbegun",
        "convert.__init__ proof reader writer",
        "coordinator inspect.streaming",
        "formats.exporting incarnations inspect.difference uploads verify",
        "forks formats.orbax_export formats.zarr_export inspect.inventory inspect.locating inspect.outline",
        "inspect.proving inspect.watching monitor.verifier operate.copying retention session",
        "beginning finishing inspect.condition inspect.explaining inspect.starts operate.collecting operate.recovery",
        "operate.rollback saving snapshot",
        "inspect.chronicle resuming",
        "inspect.costs",
        "inspect.status",
        "monitor.metrics run",
        "__init__ monitor.observers",
        "checkpointer",
        "formats.importing",
    ],
    "ckptsupervise": [
        "__init__ attempt_parts deadlines lastwords outputs policy procfs rank room stragglers telling wire",
        "ending explanation handshake leftovers nodes_policy orders stacks timeline",
        "endpoint engine guard home",
        "links watching",
        "accounts ended following leading",
        "rendezvous supervisor",
        "several",
    ],
    "ckptcli": [
        "__init__ formats.__init__ lazily numbers report.__init__ report.scale text",
        "durations ending options report.markup",
        "app marked output report.bars report.goodput starts supervise",
        "__main__ copies diff fork formats.shared gc incidents interval pin quarantine recover rollback show",
        "tag tree verify",
        "cat cp lastattempt ls formats.from_dcp formats.from_orbax formats.from_safetensors formats.to_dcp formats.to_orbax",
        "formats.to_safetensors formats.to_zarr mirror report.attempts status",
        "explain formats.groups report.timeline",
        "report.page",
        "report.command",
        "schemas",
        "schema",
    ],
    "jaxckpt": [
        "channel ending leaves preemption rng shards tree",
        "joining placing staging",
        "backend",
        "checkpointer",
        "__init__",
    ],
    "torchckpt": [
        "channel dcp.keys inert joining leaves rng shards slots tree",
        "dcp.plans dcp_export dcp_metadata memory objects preemption sampler staging",
        "dcp_source modules optimizer_state",
        "gradients nodes optimizers",
        "target",
        "backend",
        "checkpointer dcp.catalogue dcp.held dcp.lineage",
        "__init__ dcp.assemble dcp.reader titan",
        "dcp.writer",
        "dcp.__init__",
    ],
    "ckpt_conformance": [
        "__init__ adapters.__init__ adapters.answers adapters.minimal_format adapters.peers adapters.serving",
        "cases.__init__ cases.boxes cases.texts data jobs.__init__ oracle.__init__ oracle.canonical oracle.elements",
        "oracle.guarantees oracle.keys oracle.problems place report.__init__ report.text results signals",
        "adapters.failpoints adapters.minimal_reader cases.expected cases.steps oracle.digests oracle.layouts",
        "oracle.values report.summary",
        "adapters.minimal cases.scenario cases.states cases.titles fixture jobs.beginnings jobs.expect jobs.notes",
        "oracle.records report.cells report.junit report.terminal",
        "adapters.state cases.corpus cases.needs jobs.processes jobs.request jobs.restored jobs.stored jobs.trained",
        "oracle.run report.page",
        "adapters.request adapters.training jobs.serving oracle.evidence oracle.supervision work",
        "adapters.framework adapters.train_jax adapters.train_torch jobs.adapter oracle.arrays oracle.manifests",
        "adapters.opening jobs.bench jobs.damage oracle.commits oracle.nodestore oracle.survey",
        "adapters.verbs asked jobs.nodes oracle.retention oracle.staged",
        "adapters.process oracle.checker",
        "adapters.jax adapters.torch jobs.watched",
        "jobs.cell",
        "jobs.execute",
        "plugin",
        "running",
        "__main__",
    ],
    "simulation": [
        "__init__ oracle state violation",
        "scheduler",
        "channel clock contents faults",
        "service witness",
        "bucket disk judge",
        "world",
        "job others",
        "prepared scenario",
        "run",
        "exhaustive shrink",
        "__main__",
    ],
    "demo": [
        "__init__ failures.__init__ failures.history failures.plan failures.tables handover job options run_log screen",
        "stopping store_view",
        "compare data failures.rank failures.task faults processes",
        "failures.supervision failures.train_jax failures.train_torch model model_torch outcome performing",
        "failures.course stage train train_torch",
        "acts failures.claims",
        "__main__ failures.__main__",
    ],
    "benchmarks": [
        "__init__ arguments budgets cold_start_child counting_proxy machine memory page_cache peers.__init__ simulated",
        "state tables",
        "cold_start counting device_sections floor interference peers.durable plot ranks requests silent_damage soak",
        "soak_child",
        "__main__ subject",
        "child device device_jax device_torch growth job on_jax on_torch pages peers.ours",
        "cold_start_jax cold_start_torch interference_child measuring peers.dcp peers.orbax peers.ours_jax",
        "peers.ours_torch peers.safetensors peers.torch_checkpointing ranks_child",
        "summary",
        "compare",
    ],
}
FOLDERS = {"ckpt_conformance": ROOT / "conformance" / "ckpt_conformance"}
"""Where a package lies, if not at the root."""
FRAMEWORKS = {"jax", "jaxlib", "flax", "optax", "torch"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
MAX_LINES = 500

SOURCES = sorted(path for package in LAYERS for path in FOLDERS.get(package, ROOT / package).rglob("*.py"))
OTHERS = ("tests", "spec", "conformance/broken")
ALL_PYTHON = SOURCES + sorted(path for folder in OTHERS for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """`ckptcore/reader.py` → `ckptcore.reader`; a package's `__init__` keeps that name."""
    return ".".join(path.relative_to(_root_of(path)).with_suffix("").parts)


def _root_of(path: Path) -> Path:
    """The folder from which the module of `path` is imported."""
    return next((folder.parent for folder in FOLDERS.values() if path.is_relative_to(folder)), ROOT)


def _exists(module: str, file: str) -> bool:
    """Whether the module, or with `file` = `/__init__` the package, is ours."""
    package, _, rest = module.replace(".", "/").partition("/")
    return Path(f"{FOLDERS.get(package, ROOT / package)}/{rest}{file}.py").exists()


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (_imported(node.module or "", alias.name) for alias in node.names)


def _imported(module: str, name: str) -> str:
    """What `from module import name` depends on: a submodule if there is one of that name."""
    return f"{module}.{name}" if _exists(f"{module}.{name}", "") else module


def _file_of(module: str) -> str:
    """`ckptcore.convert` → `ckptcore.convert.__init__`; a module that is no package keeps its name."""
    return f"{module}.__init__" if _exists(module, "/__init__") else module


def heights() -> dict[str, int]:
    """Module → its place in the order: the higher, the more it may import."""
    rows = [(package, row) for package, packages_rows in LAYERS.items() for row in packages_rows]
    return {f"{package}.{name}": height for height, (package, row) in enumerate(rows) for name in row.split()}


def test_there_is_something_to_check() -> None:
    assert {module_of(path).partition(".")[0] for path in SOURCES} == set(LAYERS)


def test_every_module_has_a_place_in_the_order() -> None:
    found = {module_of(path) for path in SOURCES}
    assert found == set(heights()), "LAYERS in this file lists each module once"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_down_only(path: Path) -> None:
    order = heights()
    own = order[module_of(path)]
    ours = [_file_of(name) for name in imports_of(path) if name.split(".")[0] in LAYERS]
    assert [name for name in ours if order[name] >= own and name != module_of(path)] == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_core_names_no_framework(path: Path) -> None:
    frameworks = {name.split(".")[0] for name in imports_of(path)} & FRAMEWORKS
    assert not frameworks or not path.is_relative_to(ROOT / "ckptcore")


SUITE = [path for path in SOURCES if module_of(path).startswith("ckpt_conformance.")]
OURS = {"ckptcore", "jaxckpt", "torchckpt"}


def test_the_suite_knows_the_specification_alone() -> None:
    """But for the adapters of the two backends, and for what runs in the processes of those."""
    knowing = {module_of(path) for path in SUITE if {name.split(".")[0] for name in imports_of(path)} & (OURS | FRAMEWORKS)}
    assert knowing
    assert all(name.startswith("ckpt_conformance.adapters.") for name in knowing)


def test_the_minimal_reader_knows_nothing_but_libraries() -> None:
    minimal = [path for path in SUITE if path.stem.startswith("minimal")]
    assert len(minimal) == 3
    used = {name for path in minimal for name in imports_of(path) if name.split(".")[0] not in sys.stdlib_module_names}
    assert used == {
        *("blake3", "numpy", "tensorstore"),
        *("ckpt_conformance.adapters.minimal_format", "ckpt_conformance.adapters.minimal_reader"),
    }


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_nothing_runs_code_from_data(path: Path) -> None:
    """No pickle in any disguise, and nothing that turns text into code."""
    assert {name.split(".")[0] for name in imports_of(path)} & FORBIDDEN_MODULES == set()
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert {call.id for call in calls if isinstance(call, ast.Name)} & FORBIDDEN_CALLS == set()


@pytest.mark.parametrize("path", ALL_PYTHON, ids=module_of)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_importing_the_core_loads_no_framework() -> None:
    """Every module of the core, in a fresh interpreter."""
    loaded = _loaded_by(module_of(path).removesuffix(".__init__") for path in SOURCES if path.is_relative_to(ROOT / "ckptcore"))
    assert {name.split(".")[0] for name in loaded} & FRAMEWORKS == set()
    assert "ckptcore.records" in loaded


def test_the_demo_supervises_without_jax() -> None:
    loaded = _loaded_by(["demo.__main__"])
    assert {name.split(".")[0] for name in loaded} & {"jax", "jaxckpt"} == set()
    assert "demo.processes" in loaded


@pytest.mark.parametrize(
    ("package", "other"), [("torchckpt", {"jax", "jaxlib", "flax", "optax", "jaxckpt"}), ("jaxckpt", {"torch", "torchckpt"})]
)
def test_a_backend_works_where_the_other_framework_is_not_installed(package: str, other: set[str]) -> None:
    """Every module of the one, in an interpreter without the other, and a save and a restore."""
    modules = [module_of(path).removesuffix(".__init__") for path in SOURCES if path.is_relative_to(ROOT / package)]
    done = _without(other, f"{_importing(modules)}\n{_ROUND_TRIP.format(package=package)}")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert package in loaded
    assert {name.split(".")[0] for name in loaded} & other == set()


@pytest.mark.parametrize(("package", "framework"), [("torchckpt", "torch"), ("jaxckpt", "jax")])
def test_a_missing_extra_is_named(package: str, framework: str) -> None:
    done = _without({framework}, f"import {package}")
    assert done.returncode == 1
    assert f"ImportError: {package} needs" in done.stderr
    assert f"pip install 'jaxckpt[{framework}]'" in done.stderr
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith(framework) for requirement in extras[framework])


def _loaded_by(modules: Iterable[str]) -> set[str]:
    done = _without(set(), _importing(modules))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def _importing(modules: Iterable[str]) -> str:
    return f"import importlib, sys; [importlib.import_module(name) for name in {list(modules)!r}]; print(*sys.modules)"


_ROUND_TRIP = """\
import numpy as np, tempfile, {package}
with tempfile.TemporaryDirectory() as place, {package}.Checkpointer(place, derived=dict.fromkeys(
    ("optimizer", "schedule", "rng", "data"), "step")) as saver:
    saver.save(1, {{"params": {{"w": np.arange(3.0)}}}}).result(60)
    assert {package}.open_run(place).restore(components="params")["w"].tolist() == [0, 1, 2]
"""

# An absent package: nothing that looks for modules finds it.
_ABSENT = """\
import sys


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *where):
        return None if name.split(".")[0] in {absent!r} else self.finder.find_spec(name, *where)


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def _without(absent: set[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run `program` in an interpreter where the packages `absent` are not installed."""
    hidden = f"{_ABSENT.format(absent=sorted(absent))}\n{program}"
    return subprocess.run([sys.executable, "-c", hidden], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["ckptcore", "jaxckpt", "torchckpt", "ckpt_conformance"])
def test_packages_are_typed(package: str) -> None:
    assert (FOLDERS.get(package, ROOT / package) / "py.typed").exists()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run", "Makefile"])
def test_every_command_that_is_named_exists(document: str) -> None:
    commands = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", (ROOT / document).read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands <= targets
    assert commands or document == "Makefile"


@pytest.mark.parametrize(
    "target",
    [
        "help",
        "demo",
        "demo-failures",
        "test",
        "test-quick",
        "test-long",
        "conformance",
        "model",
        "simulate",
        "bench",
        "wheel",
        "check",
        "format",
        "clean",
    ],
)
def test_make_has_the_target(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607 - make is found on PATH
    assert done.returncode == 0, done.stderr


def test_ci_runs_the_commands_that_people_run() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd ", "if ", "    ", "fi"))]
    suites = ["make conformance ARGS=--quick", "make test-long", "make wheel", 'make bench ARGS="all --smoke"']
    assert commands == ["make check", "make test", "make model", *suites]


def test_what_is_tested_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    assert "torch==2.13.0" in pins
