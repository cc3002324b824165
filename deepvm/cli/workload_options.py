"""Options that say what is trained, shared by the commands that predict or plan."""

# No `from __future__ import annotations`: see deepvm.cli.plan.options.

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from deepvm.cli.help.completion import complete_model
from deepvm.cli.parameters import opt

if TYPE_CHECKING:
    from deepvm.catalog.published.workloads import WorkloadOptions
    from deepvm.core.training.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorkloadFlags:
    """What is trained.

    Numbers stay text, :func:`deepvm.catalog.published.workloads.read_workload` reads them.
    """

    model: Annotated[
        str,
        opt(
            "A preset of 'deepvm performance models', or a .yaml file.",
            "NAME|FILE",
            autocompletion=complete_model,
        ),
    ] = ""
    params: Annotated[
        str | None, opt("Instead: a language model of this size, such as 7B.", "COUNT")
    ] = None
    seq: Annotated[str | None, opt("Tokens of a sample; default: the model's.", "TOKENS")] = None
    method: Annotated[
        Literal["auto", "ddp", "fsdp", "lora"],
        opt("All on each GPU, sharded, or adapters only; auto: by size."),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "fp32", "tf32", "fp16", "bf16", "fp8"],
        opt("auto, bf16, fp16, fp8, tf32 or fp32.", "NAME"),
    ] = "auto"
    batch_per_gpu: Annotated[
        str | None, opt("Samples of a step on each GPU; default: the model's.", "N")
    ] = None
    global_batch: Annotated[
        str | None, opt("Instead: samples of a step on all GPUs together.", "N")
    ] = None
    activation_checkpointing: Annotated[
        bool | None,
        opt(
            "Recompute activations to save memory.",
            None,
            "--activation-checkpointing/--no-activation-checkpointing",
        ),
    ] = None

    def given(self, model: str = "") -> "WorkloadOptions":
        """What the options say, or ``model`` where they name none."""
        from deepvm.catalog.published.workloads import WorkloadOptions

        known = (f.name for f in fields(self) if f.name in WorkloadOptions.__annotations__)
        found: Any = {name: getattr(self, name) for name in known}
        if not self.model and self.params is None:
            found["model"] = model
        return cast(WorkloadOptions, found)

    def trained(self, model: str = "") -> "Workload":
        """What the options describe. Raises RequestError, CatalogFormatError."""
        from deepvm.catalog.published.workloads import read_workload

        return read_workload(**self.given(model))
