"""How the processes of a machine share its GPUs, and what each finds in its environment.

Processes of one group have what torchrun gives them: ``LOCAL_RANK`` is the number of the process's GPU, and each sees
all GPUs, as ``torch.cuda.set_device(LOCAL_RANK)`` and NCCL expect. A script that calls ``.cuda()`` without choosing a
device gets the same GPU, because :mod:`deepvm.jobs.agent.warm` makes it the default of the process.

An independent process sees its own share of the GPUs only, and its ``LOCAL_RANK`` is 0: ``.cuda()``,
``set_device(LOCAL_RANK)`` and programs that take every GPU they see all use that share. ``RANK`` and ``WORLD_SIZE``
still tell the processes apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepvm.io.agent_link import INDEPENDENT

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ProcessLayout:
    """The processes of one machine. ``gpus``: as ``CUDA_VISIBLE_DEVICES`` names them. ``job``: the job's name."""

    processes: int
    gpus: tuple[str, ...]
    independent: bool
    job: str

    @classmethod
    def of(cls, spec: Mapping[str, Any], environ: Mapping[str, str]) -> ProcessLayout:
        """By what the controller sends; a machine, or the job's ``env``, may already limit the GPUs."""
        names = environ[GPUS].split(",") if environ.get(GPUS) else map(str, range(int(spec.get("gpus", 0))))
        return cls(int(spec["per_machine"]), tuple(names), bool(spec.get("independent")), str(spec["name"]))

    @property
    def forms_group(self) -> bool:
        """Whether several processes here are expected to form a process group."""
        return self.processes > 1 and not self.independent

    def variables(self, local: int, rank: int) -> dict[str, str]:
        """Those of the process with this number on this machine, and this rank of all."""
        if not self.independent:
            found = {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(self.processes)}
            return found | ({GPUS: ",".join(self.gpus)} if self.gpus else {})
        found = {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", INDEPENDENT: str(local)}
        if rank:  # their checkpoints must not replace one another
            found["DEEPVM_JOB"] = f"{self.job}-{rank}"
        return found | ({GPUS: ",".join(self._share(local))} if self.gpus else {})

    def _share(self, local: int) -> tuple[str, ...]:
        """The GPUs of an independent process: as many for each, or one for several."""
        each = len(self.gpus) // self.processes
        if not each:
            return (self.gpus[local % len(self.gpus)],)
        return self.gpus[local * each : (local + 1) * each]
