"""Who a process is, by the variables of each launcher as those set them; and what no launcher would say is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import launch as module
from ckptcore.errors import CallError
from ckptcore.launch import Launch, first_host, launch, tasks_per_node

SUPERVISED = {
    "CKPT_ATTEMPT": "4",
    "CKPT_SLOT": "3",
    "CKPT_SLOTS": "4",
    "CKPT_COORDINATOR": "127.0.0.1:41001",
    "RANK": "2",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "3",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "7",
}
KUBEFLOW = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
SLURM = {
    "SLURM_JOB_ID": "81234",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_NTASKS": "12",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004,007]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x3)",
}
JOBSET = {
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "workers",
    "JOB_INDEX": "1",
    "PROCESSES_IN_JOB": "4",
    "JOB_COMPLETION_INDEX": "2",
    "JAX_PROCESS_COUNT": "8",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "train-0.pods"}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_a_process_that_nobody_launched_is_the_whole_job() -> None:
    assert launch({}) == Launch()
    assert launch({"WORLD_SIZE": "1", "PATH": "/bin"}) == Launch()


def test_under_supervision() -> None:
    place = launch(SUPERVISED)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (2, 3, 2, 3)
    assert (place.slot, place.slots, place.device) == (3, 4, 3)
    assert (place.coordinator, place.source) == ("127.0.0.1:41001", "supervise")


def test_the_only_rank_left_keeps_to_its_slot() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "CKPT_SLOT": "0"}
    shrunk = launch(without(SUPERVISED, "CKPT_COORDINATOR") | alone)
    assert (shrunk.size, shrunk.slots, shrunk.device) == (1, 4, 0)
    assert launch(without(SUPERVISED, "CKPT_COORDINATOR") | alone | {"CKPT_SLOTS": "1"}).device is None


def test_a_supervisor_shows_the_gpus_of_the_slots_in_use() -> None:
    shown = launch(SUPERVISED | {"CUDA_VISIBLE_DEVICES": "0,1,3"})
    assert (shown.slot, shown.local_rank, shown.device) == (3, 2, 2)


def test_a_slot_beyond_the_ranks_is_one_of_more_slots() -> None:
    assert launch(without(SUPERVISED, "CKPT_SLOTS")).slots == 4


def test_by_torchrun() -> None:
    place = launch(TORCHRUN)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.device) == (9, 16, 1, 8, 1)
    assert place.source == "elastic"


@pytest.mark.parametrize(("port", "other"), [("29400", 29401), ("65535", 65534)])
def test_jax_does_not_take_the_port_at_which_the_agent_of_torchrun_listens(port: str, other: int) -> None:
    assert launch(TORCHRUN | {"MASTER_PORT": port}).coordinator == f"node0:{other}"
    assert launch(TORCHRUN | {"JAX_COORDINATOR_ADDRESS": "node0:1234"}).coordinator == "node0:1234"


def test_by_rank_and_world_size_alone() -> None:
    place = launch(KUBEFLOW)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.device) == (2, 4, 0, 1, None)
    assert (place.coordinator, place.source) == ("job-master-0:23456", "elastic")
    assert launch(KUBEFLOW | {"MASTER_ADDR": "fd00::7"}).coordinator == "[fd00::7]:23456"


def test_a_script_that_hands_on_what_slurm_says() -> None:
    place = launch(SLURM | {"RANK": "11", "WORLD_SIZE": "12", "MASTER_ADDR": "gpu003", "MASTER_PORT": "12345"})
    assert (place.rank, place.size, place.local_rank, place.local_size, place.device) == (11, 12, 3, 4, 3)
    assert place.coordinator == "gpu003:12345"


def test_a_rank_that_all_tasks_have_is_refused() -> None:
    """`export RANK=0` in the batch script: every task would take itself for rank 0."""
    told = {"RANK": "0", "WORLD_SIZE": "12", "MASTER_ADDR": "gpu003", "MASTER_PORT": "12345"}
    with pytest.raises(CallError, match="this is task 11 of 12"):
        launch(SLURM | told)


def test_torchrun_in_a_task_of_slurm_has_the_last_word() -> None:
    place = launch(SLURM | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"} | TORCHRUN)
    assert (place.rank, place.size, place.local_rank) == (9, 16, 1)
    one_a_node = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert launch(SLURM | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"} | TORCHRUN | one_a_node).rank == 0, "its own order of nodes"


def test_by_slurm() -> None:
    place = launch(SLURM)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.device) == (11, 12, 3, 4, 3)
    assert (place.coordinator, place.source) == (f"gpu003:{61440 + 81234 % 4096}", "slurm")
    assert launch(SLURM | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "5000"}).coordinator == "10.0.0.7:5000"


def test_by_slurm_each_task_may_see_its_own_gpus_only() -> None:
    assert launch(SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}).device == 3
    assert launch(SLURM | {"CUDA_VISIBLE_DEVICES": "2"}).device is None
    assert launch(SLURM | {"CUDA_VISIBLE_DEVICES": "GPU-8f2e,GPU-77aa"}).device is None


def test_the_tasks_of_a_step_count_not_those_of_the_whole_allocation() -> None:
    assert launch(SLURM | {"SLURM_NTASKS": "96"}).size == 12
    assert launch(without(SLURM, "SLURM_STEP_NUM_TASKS")).size == 12


def test_the_script_of_a_batch_job_is_no_task() -> None:
    assert launch({"SLURM_JOB_ID": "81234", "SLURM_PROCID": "0", "SLURM_NTASKS": "12", "SLURM_LOCALID": "0"}) == Launch()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("node[7]", "node7"),
        ("rack[2-3]node[08,11-12]-ib,login", "rack2node08-ib"),
        ("gpu-a-3.cluster.example", "gpu-a-3.cluster.example"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 5)), min_size=1, max_size=6))
def test_tasks_of_each_node(runs: list[tuple[int, int]]) -> None:
    text = ",".join(str(tasks) if nodes == 1 else f"{tasks}(x{nodes})" for tasks, nodes in runs)
    assert tasks_per_node(text) == [tasks for tasks, nodes in runs for _ in range(nodes)]


def test_in_a_jobset() -> None:
    place = launch(JOBSET)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.device) == (6, 8, 0, 1, None)
    assert (place.coordinator, place.source) == (f"train-workers-0-0.train:{module.POD_PORT}", "jobset")
    assert launch(JOBSET | {"MASTER_ADDR": "other"}).coordinator == f"other:{module.POD_PORT}"


def test_a_jobset_of_one_job_needs_no_more_than_the_total() -> None:
    place = launch(without(JOBSET, "JOB_INDEX", "PROCESSES_IN_JOB", "JAX_PROCESS_COUNT") | {"WORLD_SIZE": "8"})
    assert (place.rank, place.size) == (2, 8)


def test_every_pod_of_a_jobset_has_a_rank_of_its_own() -> None:
    pods = [JOBSET | {"JOB_INDEX": str(job), "JOB_COMPLETION_INDEX": str(pod)} for job in range(2) for pod in range(4)]
    assert [launch(pod).rank for pod in pods] == list(range(8))
    assert len({launch(pod).coordinator for pod in pods}) == 1


def test_in_an_indexed_job() -> None:
    place = launch(KUBERNETES)
    assert (place.rank, place.size, place.source) == (3, 4, "kubernetes")
    assert place.coordinator == f"train-0.pods:{module.POD_PORT}"


def test_pods_that_have_nothing_to_do_with_each_other_are_jobs_of_their_own() -> None:
    assert launch({"JOB_COMPLETION_INDEX": "3"}) == Launch()


def test_a_job_of_one_process_meets_nobody() -> None:
    for environ in (
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        SLURM
        | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
        | {"SLURM_NODEID": "0"},
        {"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "train-0.pods"},
    ):
        place = launch(environ)
        assert (place.rank, place.size, place.coordinator, place.device) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but RANK is not set"),
        ({"RANK": "1"}, "WORLD_SIZE is not set"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "no place to meet"),
        (KUBEFLOW | {"RANK": "4"}, "rank 4 of 4"),
        (KUBEFLOW | {"RANK": "-1"}, "RANK='-1' in the environment: expected a number"),
        (KUBEFLOW | {"WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        (KUBEFLOW | {"LOCAL_RANK": "1"}, "LOCAL_WORLD_SIZE is not set: which of how many"),
        (TORCHRUN | {"LOCAL_RANK": "8"}, "local rank 8 of 8"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "32"}, "32 processes on this node, 16 in the whole job"),
        (without(SUPERVISED, "RANK"), "RANK is not set"),
        (without(SUPERVISED, "CKPT_COORDINATOR"), "no place to meet"),
        (SUPERVISED | {"CKPT_SLOT": "4"}, "slot 4 of 4"),
        (SLURM | {"SLURM_PROCID": "12"}, "rank 12 of 12"),
        (SLURM | {"SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
        (SLURM | {"SLURM_LOCALID": "4"}, "local rank 4 of 4"),
        (without(SLURM, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set"),
        (without(SLURM, "SLURM_STEP_TASKS_PER_NODE"), "SLURM_STEP_TASKS_PER_NODE is not set"),
        (without(JOBSET, "JAX_PROCESS_COUNT"), "does not say how many processes it has"),
        (without(JOBSET, "REPLICATED_JOB_NAME"), "REPLICATED_JOB_NAME is not set"),
        (without(JOBSET, "JOB_INDEX"), "JOB_INDEX is not set"),
        (JOBSET | {"WORLD_SIZE": "4"}, "JAX_PROCESS_COUNT is 8, WORLD_SIZE 4"),
        (JOBSET | {"JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX is 4, PROCESSES_IN_JOB 4"),
        (JOBSET | {"PROCESSES_IN_JOB": "3"}, "PROCESSES_IN_JOB 3, and there are 8"),
        (JOBSET | {"PROCESSES_IN_JOB": "0"}, "PROCESSES_IN_JOB 0"),
        (JOBSET | {"JOB_INDEX": "2"}, "rank 10 of 8"),
        (without(KUBERNETES, "MASTER_ADDR"), "no place to meet"),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "4"}, "rank 4 of 4"),
    ],
)
def test_what_contradicts_itself_is_refused(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(CallError, match=problem.replace("(", r"\(")):
        launch(environ)
