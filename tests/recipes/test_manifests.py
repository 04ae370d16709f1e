"""The manifests against the fields that their kinds have, and what the pods that come of them find in their environment."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer.main import get_command

from ckptcore.launch import Launch, launch

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
MANIFESTS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(RECIPES.glob("*.yaml"))}
SCHEMA = jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "manifests.schema.json").read_text()))
JOBSETS = [name for name, manifest in MANIFESTS.items() if manifest["kind"] == "JobSet"]


def job_specs(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    if manifest["kind"] == "Job":
        return [manifest["spec"]]
    return [job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]]


def pods(manifest: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The environment of every pod that JobSet and Kubernetes make of a manifest."""
    name = manifest["metadata"]["name"]
    for job in manifest["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        for index in range(job.get("replicas", 1)):
            known = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
                "jobset.sigs.k8s.io/job-index": str(index),
            }
            for completion in range(spec["completions"]):
                own = {each["name"]: value_of(each, known) for each in container.get("env", [])}
                yield {**own, "JOB_COMPLETION_INDEX": str(completion)}


def value_of(entry: Mapping[str, Any], known: Mapping[str, str]) -> str:
    if "value" in entry:
        return entry["value"]
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", entry["valueFrom"]["fieldRef"]["fieldPath"])
    assert label
    return known[label[1]]


def test_there_are_manifests() -> None:
    assert list(MANIFESTS) == ["job.yaml", "jobset.yaml", "tpu-jobset.yaml"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_fields_that_its_kind_has(name: str) -> None:
    assert [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(MANIFESTS[name])] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicatedJobs.0.template.spec.backofLimit", 0),
        ("spec.failurePolicy.rules.0.action", "Restart"),
        ("spec.replicatedJobs.0.template.spec.template.spec.containers.0.env.0.value", 4),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.1.onExitCodes.values", [0]),
        ("spec.replicatedJobs.0.template.spec.template.spec.restartPolicy", "Always"),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.0.onPodConditions", [{"type": "DisruptionTarget"}]),
        ("apiVersion", "batch/v1"),
    ],
)
def test_the_schema_sees_mistakes(path: str, value: Any) -> None:
    changed = copy.deepcopy(MANIFESTS["jobset.yaml"])
    *way, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    place = changed
    for word in way:
        place = place[word]
    place[last] = value
    assert not SCHEMA.is_valid(changed)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_job_that_has_saved_and_stopped_does_not_count(name: str) -> None:
    """Exit status 143 and a node that was taken: both are rules, which need `restartPolicy: Never`."""
    manifest = MANIFESTS[name]
    for spec in job_specs(manifest):
        action = "Ignore" if manifest["kind"] == "Job" else "FailJob"
        rules = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == action]
        assert any(rule.get("onPodConditions") == [{"type": "DisruptionTarget", "status": "True"}] for rule in rules)
        assert any(143 in rule.get("onExitCodes", {}).get("values", []) for rule in rules)
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"]
        containers = {container["name"] for container in spec["template"]["spec"]["containers"]}
        assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} <= containers
    if manifest["kind"] == "JobSet":
        first, *_ = manifest["spec"]["failurePolicy"]["rules"]
        assert (first["action"], first["onJobFailureReasons"]) == ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
        assert all(spec["backoffLimit"] == 0 for spec in job_specs(manifest))


@pytest.mark.parametrize("name", MANIFESTS)
def test_signals_reach_the_program_and_it_has_time_to_save(name: str) -> None:
    for spec in job_specs(MANIFESTS[name]):
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"][0] in ("python", "ckpt")
        assert pod["terminationGracePeriodSeconds"] >= 300
        grace = next((each for each in container["command"] if each.startswith("--grace=")), "--grace=0min")
        assert int(grace.removeprefix("--grace=").removesuffix("min")) * 60 < pod["terminationGracePeriodSeconds"]


def test_the_pods_of_a_jobset_learn_their_ranks() -> None:
    places = [launch(environ) for environ in pods(MANIFESTS["jobset.yaml"])]
    assert places == [
        Launch(rank=rank, size=4, coordinator="train-workers-0-0.train:29500", source="jobset") for rank in range(4)
    ]
    ports = job_specs(MANIFESTS["jobset.yaml"])[0]["template"]["spec"]["containers"][0]["ports"]
    assert ports == [{"containerPort": 29500}]


def test_several_replicas_as_the_page_says() -> None:
    two = copy.deepcopy(MANIFESTS["jobset.yaml"])
    job = two["spec"]["replicatedJobs"][0]
    job["replicas"] = 2
    env = job["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    next(each for each in env if each["name"] == "WORLD_SIZE")["value"] = "8"
    env.append({"name": "PROCESSES_IN_JOB", "value": "4"})
    assert SCHEMA.is_valid(two)
    assert [launch(environ).rank for environ in pods(two)] == list(range(8))


def supervised(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line of a supervised pod says."""
    from ckptcli.lazily import COMMANDS
    from ckptcli.supervise import supervise

    (container,) = job_specs(manifest)[0]["template"]["spec"]["containers"]
    _, name, *arguments = container["command"]
    assert COMMANDS[name] == "supervise"
    alone = typer.Typer(add_completion=False)
    alone.command(name)(supervise)
    return get_command(alone).make_context(name, arguments).params


def test_several_supervised_machines_as_the_page_says() -> None:
    several = copy.deepcopy(MANIFESTS["job.yaml"])
    several["spec"].update(completions=4, parallelism=4)
    (container,) = several["spec"]["template"]["spec"]["containers"]
    container["command"][2:2] = ["--nnodes=4", "--min-nnodes=3"]
    assert SCHEMA.is_valid(several)
    given = supervised(several)
    assert (given["nnodes"], given["min_nnodes"], given["nproc"], given["node"], given["address"]) == (4, 3, 8, None, None)


def test_a_supervised_pod_has_a_command_line_that_is_one() -> None:
    given = supervised(MANIFESTS["job.yaml"])
    assert (given["nproc"], given["min_nproc"], given["run"]) == (8, 7, "s3://bucket/run")
    assert list(given["command"]) == ["python", "train_torch.py", "s3://bucket/run", "100000"]
