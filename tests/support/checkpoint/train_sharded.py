"""A sharded training that the tests start, by :meth:`Run.start`."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[2]
FIRST_SAFE = 3
"""Before so many steps a rank with a victim among them waits until a version is safe: whoever comes
then resumes.
"""
JOB = "sharded"
NOT_KILLED = 9
"""Exit code: the victim ended in another way."""


class NotKilledError(AssertionError):
    """The victim of a kill ended in another way: nothing was shown."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What to train, from the newest version until step ``end``.

    Attributes:
        kind: ``fsdp``; ``hybrid``: two copies, each sharded; ``tensor``: tensor parallel by pairs,
            and sharded across them; ``plain``: the same model in one process.
        out: file of the states by step, for the first rank; a version is saved every step.
        victim: the rank that is killed, in step ``kill_step`` before it does ``kill_before``, or,
            if ``failpoint`` is named, there, when it passes for the so-many-th time.
        copy_pause_s: how much longer the copy of each piece takes.
        drift: the second rank's copy of a tensor that both hold is another one from the start.
        seed: of the batches. change: mutations, see ``sharded_mutations``. faults: a save meets
            each, in a folder of its own below that of ``tiers``; see ``sharded_saves``, which runs
            in place of the training.
    """

    kind: str
    tiers: list[str]
    world: int
    end: int
    out: str
    strategy: str = "C"
    victim: int = -1
    kill_step: int = -1
    kill_before: str = ""
    failpoint: str = ""
    passes: int = 0
    copy_pause_s: float = 0.0
    drift: bool = False
    keep: int = 2
    seed: int = 0
    change: tuple[str, ...] = ()
    faults: tuple[tuple[str, int, int, bool, int], ...] = ()

    def start(self) -> tuple[Any, list[int], str]:
        """Train.

        Returns the states by step, the versions that were acknowledged, and what the ranks logged.

        Raises RuntimeError: a rank failed. NotKilledError: there is a victim, and it did not die by
        SIGKILL.
        """
        words = [sys.executable, __file__, json.dumps(dataclasses.asdict(self))]
        environ = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environ)
        saved = [
            int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("saved")
        ]
        if run.returncode:
            if run.returncode == NOT_KILLED:
                raise NotKilledError(
                    f"rank {self.victim} did not die by SIGKILL: {run.stderr[-6000:]}"
                )
            raise RuntimeError(f"exit code {run.returncode}: {run.stderr[-6000:]}")
        return (
            {} if self.victim >= 0 else torch.load(self.out, weights_only=False),
            saved,
            run.stderr,
        )


def model_of(run: Run) -> Any:
    """Sizes that no number of ranks divides, parameters smaller than it, and a buffer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 14),
        torch.nn.ReLU(),
        torch.nn.Linear(14, 6),
        torch.nn.BatchNorm1d(6),
        torch.nn.Linear(6, 1),
    )
    if run.kind == "plain":
        return model
    if run.kind == "tensor":
        mesh = init_device_mesh("cpu", (run.world // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if run.world > 2:
            fully_shard(model, mesh=mesh["data"])
        return model
    shape = (2, run.world // 2) if run.kind == "hybrid" else (run.world,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard")[-len(shape) :])
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def whole(tree: Any) -> Any:
    """A copy of a state with whole tensors."""
    if isinstance(tree, dict):
        return {k: whole(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [whole(v) for v in tree]
    if hasattr(tree, "full_tensor"):
        tree = tree.full_tensor()
    return tree.detach().clone() if isinstance(tree, torch.Tensor) else tree


def differences(one: Any, other: Any, place: str = "state") -> list[str]:
    """Where two states differ in a bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for k, v in one.items() for d in differences(v, other[k], f"{place}[{k!r}]")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for n, v in enumerate(one) for d in differences(v, other[n], f"{place}[{n}]")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [f"{place}: {one} {other}"]
    return [] if one == other else [f"{place}: {one} {other}"]


def read(file: Path) -> dict[str, Any]:
    """The state in a version's file, as plain ``torch.load`` reads it."""
    tree = torch.load(file, weights_only=True)
    found = {
        "model": dict(tree["model"]),
        "optimizer": tree["optimizer"],
        "scheduler": tree["extra"]["scheduler"],
    }
    return {name: whole(part) for name, part in found.items()}


def digest(state: Any) -> str:
    stream = io.BytesIO()
    torch.save(state, stream)
    return hashlib.sha256(stream.getvalue()).hexdigest()


class Training:
    """Model, optimizer, scheduler and checkpointer of a rank."""

    def __init__(self, run: Run, tiers: list[str], **options: Any) -> None:
        from deepvm.checkpoint import Checkpointer

        self.seed, self.model = run.seed, model_of(run)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        self.saver = Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra={"scheduler": self.scheduler},
            tiers=tiers,
            job=JOB,
            **options,
        )

    def take(self) -> dict[str, Any]:
        """A copy of the state, whole; collective."""
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {name: whole(part.state_dict()) for name, part in parts.items()}

    def step(self, pass_by: Callable[[str], None] = str) -> None:
        """Train one; tell what comes next."""
        torch.manual_seed(1000 * self.seed + self.saver.version)
        self.optimizer.zero_grad()
        pass_by("forward")
        # The same batch on all ranks: sums of equals do not depend on their number.
        loss = self.model(torch.randn(4, 10)).square().mean()
        pass_by("backward")
        loss.backward()
        pass_by("step")
        self.optimizer.step()
        self.scheduler.step()


def train(run: Run, rank: int) -> None:
    training = Training(run, run.tiers, every=1, keep=run.keep, strategy=run.strategy)
    model, ck = training.model, training.saver
    if run.drift and rank == 1:
        model[2].bias.data.to_local().add_(1e-3)
    begin = ck.restore_latest()
    told: set[int] = set()

    def safe(handle: Any) -> bool:
        return any(f.done() and not f.exception() for f in (handle.remote_done, handle.durable))

    def tell() -> None:
        for handle in ck.handles:
            if safe(handle) and handle.version not in told and not rank:
                told.add(handle.version)
                os.write(1, f"saved {handle.version}\n".encode())

    def pass_by(place: str) -> None:
        tell()
        if rank == run.victim and ck.version + 1 == run.kill_step and place == run.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    states = {begin: training.take()}
    for step in range(begin, run.end):
        while (
            run.victim >= 0 and step == FIRST_SAFE and not told and not any(map(safe, ck.handles))
        ):
            time.sleep(0.002)
        training.step(pass_by)
        states[step + 1] = training.take()
    ck.save(block=True)
    tell()
    assert bool(ck.metrics["disagreements"]) == run.drift
    ck.close()
    digests: list[Any] = [None] * run.world
    if run.world > 1 and not run.drift:
        torch.distributed.all_gather_object(
            digests, [digest(states[step]) for step in sorted(states)]
        )
        assert all(row == digests[0] for row in digests), "the ranks' copies differ"
    if not rank:
        torch.save(states, run.out)


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for slow in (
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "deepvm.checkpoint",
    ):
        importlib.import_module(slow)
    from deepvm.checkpoint.snapshot.host_buffer import Slot
    from deepvm.io import failpoints
    from support.checkpoint import sharded_mutations, sharded_saves
    from support.checkpoint.slow_copies import slow_copy

    for name in run.change:
        sharded_mutations.MUTATIONS[name]()
    if run.copy_pause_s:
        Slot.copy = slow_copy(run.copy_pause_s)  # type: ignore[method-assign]
    ranks: dict[int, int] = {}
    for rank in range(run.world):  # forked, because importing all this takes longer than the rest
        if not (pid := os.fork()):
            break
        ranks[pid] = rank
    else:
        if run.victim >= 0:  # the others may fail before it is known that it died
            pid = next(p for p, r in ranks.items() if r == run.victim)
            failed = os.waitpid(pid, 0)[1] != signal.SIGKILL
            del ranks[pid]
        else:
            failed = False
            while ranks and not failed:
                pid, status = os.wait()
                failed = bool(status)
                del ranks[pid]
        if ranks:  # one has ended before its time
            time.sleep(0.2)
            for other in ranks:
                os.kill(other, signal.SIGKILL)
        os._exit(NOT_KILLED if failed and run.victim >= 0 else failed)
    if rank == run.victim and run.failpoint:
        failpoints._label, failpoints._left = run.failpoint, run.passes
    if run.kind != "plain":
        meeting = Path(run.out).with_suffix(f".{os.getppid()}")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=run.world
        )
    (sharded_saves.attempts if run.faults else train)(run, rank)
    if run.world > 1:
        torch.distributed.barrier()
    sys.stderr.flush()
    os._exit(0)  # threads of gloo outlive the group (torch 2.13), and may abort the interpreter


if __name__ == "__main__":
    main()
