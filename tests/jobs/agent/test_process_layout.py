"""What each process of a machine has in its environment: its rank, and its GPUs."""

from __future__ import annotations

import sys
from collections import OrderedDict
from importlib import import_module
from typing import Any

import pytest
import torch

from deepvm.io.agent_board import BOARD, Board
from deepvm.io.agent_link import INDEPENDENT, AgentLink
from deepvm.jobs.agent.trainers import GPUS, ProcessLayout
from deepvm.jobs.agent.warm import use_own_gpu, watch_first_step

OPTIMIZER: Any = import_module("torch.optim.optimizer")


def layout(
    per_machine: int, gpus: int, *, independent: bool = False, **environ: str
) -> list[dict[str, str]]:
    """The variables of each process, on the second of two machines."""
    spec = {"name": "job", "per_machine": per_machine, "gpus": gpus, "independent": independent}
    found = ProcessLayout.of(spec, environ)
    return [found.variables(local, per_machine + local) for local in range(per_machine)]


def test_processes_of_a_group_have_what_torchrun_gives_them() -> None:
    """``set_device(LOCAL_RANK)`` must work: each sees all GPUs."""
    found = layout(4, 4)
    assert [one["LOCAL_RANK"] for one in found] == ["0", "1", "2", "3"]
    assert [one["RANK"] for one in found] == ["4", "5", "6", "7"]
    assert {one[GPUS] for one in found} == {"0,1,2,3"} and {
        one["LOCAL_WORLD_SIZE"] for one in found
    } == {"4"}
    assert not any("DEEPVM_JOB" in one or INDEPENDENT in one for one in found)


def test_independent_processes_see_their_own_gpu_as_the_first() -> None:
    """Both ``.cuda()`` and ``set_device(LOCAL_RANK)`` must use it, and checkpoints must not replace
    one another.
    """
    found = layout(4, 4, independent=True)
    assert [one[GPUS] for one in found] == ["0", "1", "2", "3"]
    assert {one["LOCAL_RANK"] for one in found} == {"0"} and {
        one["LOCAL_WORLD_SIZE"] for one in found
    } == {"1"}
    assert [one["RANK"] for one in found] == ["4", "5", "6", "7"]
    assert [one["DEEPVM_JOB"] for one in found] == ["job-4", "job-5", "job-6", "job-7"]
    assert [one[INDEPENDENT] for one in found] == ["0", "1", "2", "3"]


def test_shares_of_independent_processes() -> None:
    for per_machine, gpus, environ, shares in [
        (2, 4, {}, ["0,1", "2,3"]),
        (1, 4, {}, ["0,1,2,3"]),
        (3, 2, {}, ["0", "1", "0"]),
        (2, 4, {GPUS: "GPU-a,GPU-b"}, ["GPU-a", "GPU-b"]),
    ]:
        assert [
            one[GPUS] for one in layout(per_machine, gpus, independent=True, **environ)
        ] == shares


def test_machines_without_a_gpu_and_those_that_limit_theirs() -> None:
    assert GPUS not in layout(1, 0)[0] and GPUS not in layout(2, 0, independent=True)[1]
    assert layout(2, 4, **{GPUS: "6,7"})[1][GPUS] == "6,7"


def test_an_independent_process_has_the_agent_to_itself(tmp_path: Any) -> None:
    """It saves when it is asked to, without waiting for the others.

    Its steps have a place of their own.
    """
    Board.create(tmp_path / BOARD).close()
    environ = {
        "DEEPVM_AGENT": str(tmp_path),
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "0",
        INDEPENDENT: "1",
    }
    link = AgentLink.find(environ)
    assert link is not None and (link.rank, link.world, link.local_rank) == (0, 1, 1)
    link.close()


@pytest.mark.parametrize(
    ("local_rank", "devices", "chosen"), [("3", 4, [3]), ("0", 4, []), ("3", 1, [])]
)
def test_the_own_gpu_is_the_default(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, devices: int, chosen: list[int]
) -> None:
    """``.cuda()`` of rank 3 is GPU 3; on a machine that is simulated here it may not be there."""
    found = list[int]()
    queued = list[Any]()
    monkeypatch.setattr(torch.cuda, "_queued_calls", queued)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    use_own_gpu({"LOCAL_RANK": local_rank})
    assert not found, "CUDA must not be used before the script does: it could not fork any more"
    for call, *_ in queued:
        call()
    assert found == chosen


class Link:
    """An agent that is asked about first steps."""

    asked = 0

    def ask(self, message: Any) -> dict[str, bool]:
        Link.asked += message == {"ask": "first-step"}
        return {"stop": False}


@pytest.fixture
def optimizer(monkeypatch: pytest.MonkeyPatch) -> torch.optim.SGD:
    """Of a process in which the first step is watched."""
    monkeypatch.setattr(OPTIMIZER, "_global_optimizer_pre_hooks", OrderedDict())
    monkeypatch.setattr("deepvm.jobs.agent.warm.AgentLink", type("Found", (), {"find": Link}))
    monkeypatch.setattr(Link, "asked", 0)
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])


def test_a_first_step_without_a_group_is_asked_about_once(
    optimizer: torch.optim.SGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests may have imported one of them
    monkeypatch.setattr("deepvm.jobs.agent.warm._OTHER_GROUPS", ())
    monkeypatch.setattr("deepvm.jobs.agent.warm.distributed", lambda: None)
    watch_first_step({"WORLD_SIZE": "4"})
    for _ in range(3):
        optimizer.step()
    assert Link.asked == 1 and not OPTIMIZER._global_optimizer_pre_hooks


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "4", INDEPENDENT: "2"}])
def test_one_process_and_independent_ones_are_not_watched(
    optimizer: torch.optim.SGD, environ: dict[str, str]
) -> None:
    watch_first_step(environ)
    optimizer.step()
    assert not Link.asked


def test_a_group_of_another_library_or_of_torch_is_one(
    optimizer: torch.optim.SGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "horovod", torch)
        watch_first_step({"WORLD_SIZE": "4"})
        optimizer.step()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    watch_first_step({"WORLD_SIZE": "4"})
    optimizer.step()
    assert not Link.asked


def test_a_compiled_step_is_left_as_it_is(
    optimizer: torch.optim.SGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    watch_first_step({"WORLD_SIZE": "4"})
    optimizer.step()
    assert not Link.asked
