"""Options that say what is trained, shared by the commands that predict or plan."""

# No `from __future__ import annotations`: see deepvm.cli.plan.options.

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal

from deepvm.cli.help.completion import complete_model
from deepvm.cli.parameters import opt

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorkloadFlags:
    """What is trained; numbers stay text, :func:`deepvm.catalog.published.workloads.read_workload` reads them."""

    model: Annotated[
        str,
        opt(
            "A preset of 'deepvm performance models', or a .yaml file.",
            "NAME|FILE",
            autocompletion=complete_model,
        ),
    ] = ""
    params: Annotated[str | None, opt("Instead: a language model of this size, such as 7B.", "COUNT")] = None
    seq: Annotated[str | None, opt("Tokens of a sample; default: the model's.", "TOKENS")] = None
    method: Annotated[
        Literal["auto", "ddp", "fsdp", "lora"], opt("All on each GPU, sharded, or adapters only; auto: by size.")
    ] = "auto"
    precision: Annotated[
        Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"],
        opt("auto, bf16, fp16, fp8, tf32 or fp32.", "NAME"),
    ] = "auto"
    batch_per_gpu: Annotated[str | None, opt("Samples of a step on each GPU; default: the model's.", "N")] = None
    global_batch: Annotated[str | None, opt("Instead: samples of a step on all GPUs together.", "N")] = None
    activation_checkpointing: Annotated[
        bool | None,
        opt("Recompute activations to save memory.", None, "--activation-checkpointing/--no-activation-checkpointing"),
    ] = None

    def trained(self, model: str = "") -> "Workload":
        """What the options describe, or ``model`` where they name none. Raises RequestError, CatalogFormatError."""
        from deepvm.catalog.published.workloads import WorkloadOptions, read_workload

        own = {f.name for f in fields(self)}
        given = {name: getattr(self, name) for name in WorkloadOptions.__annotations__ if name in own}
        if not self.model and self.params is None:
            given["model"] = model
        return read_workload(**given)
