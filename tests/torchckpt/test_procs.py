"""The jobs that the other tests are made of."""

from __future__ import annotations

import os
import signal

import pytest

from tests.torchckpt.procs import Job, run_job

pytestmark = pytest.mark.slow


def test_every_rank_is_a_process_of_its_own() -> None:
    script = """
    import os, numpy as np
    total = torch.tensor([float(RANK)])
    dist.all_reduce(total)
    print(RANK, SIZE, ARGS, total.item(), os.environ["MARK"], os.getpid(), np.random.rand())
    """
    lines = [output.split() for output in run_job(script, size=4, args=["x"], env={"MARK": "m"})]
    assert [line[:5] for line in lines] == [[str(rank), "4", "['x']", "6.0", "m"] for rank in range(4)]
    assert len({line[5] for line in lines} - {str(os.getpid())}) == len({line[6] for line in lines}) == 4


@pytest.mark.parametrize("group", [False, True])
def test_one_process_with_and_without_a_group(group: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    assert run_job("print(dist.is_initialized())", size=1, group=group) == [f"{group}\n"]


def test_an_end_is_an_end() -> None:
    """Exit handlers run, errors show, statuses are those of the process; a signal is told as one."""
    script = """
    import atexit, time
    atexit.register(print, "at exit")
    if ARGS[0] == "wait":
        print("waiting", flush=True)
        time.sleep(60)
    sys.exit(3) if ARGS[0] == "exit" else print(1 / 0)
    """
    with Job(script, size=1, args=["exit"]) as job:
        assert job.ranks[0].wait() == 3
        assert job.ranks[0].output == "at exit\n"
    with pytest.raises(AssertionError, match=r"exit statuses \[1\](.|\n)*print\(1 / 0\)(.|\n)*ZeroDivisionError(.|\n)*at exit"):
        run_job(script, size=1, args=["raise"])
    with Job(script, size=1, args=["wait"]) as job:
        job.ranks[0].wait_for("waiting")
        job.ranks[0].send(signal.SIGKILL)
        assert job.ranks[0].wait() == -signal.SIGKILL
