"""Checkpoints for a loop with Hugging Face's Accelerate: :func:`checkpointed`."""

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator, DistributedType
from accelerate.data_loader import get_sampler

from deepvm.checkpoint.integrations.session import Session, TrainingRun, prepared
from deepvm.checkpoint.training.state import Stateful
from deepvm.errors import RequestError

# How ranks work together that hold the whole model
_WHOLE = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_XPU,
    DistributedType.MULTI_NPU,
)


class AccelerateState:
    """What Accelerate counts (batches to the next step, epochs), and its sampler's seed."""

    def __init__(self, accelerator: Any, loader: Any) -> None:
        self._accelerator = accelerator
        self._loader = loader

    def state_dict(self) -> dict[str, int]:
        seed = getattr(self._sampler, "initial_seed", 0)
        return {"step": self._accelerator.step, "iteration": self._loader.iteration, "seed": seed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._accelerator.step = state_dict["step"]
        self._loader.iteration = state_dict["iteration"]
        if hasattr(self._sampler, "initial_seed"):
            self._sampler.initial_seed = state_dict["seed"]

    @property
    def _sampler(self) -> Any:
        return get_sampler(self._loader)


class AcceleratedRun(TrainingRun):
    """A loop with Accelerate; ``loader`` may as well be iterated over by its own name."""

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0, as Accelerate counts."""
        return int(self.loader.iteration)


def checkpointed(
    accelerator: Accelerator,
    *,
    model: Any,
    optimizer: Any,
    loader: Any,
    epochs: int | None = None,
    extra: Mapping[str, Stateful] | None = None,
    sigterm: bool = True,
    **options: Any,
) -> AcceleratedRun:
    """A loop with Accelerate that resumes without help, in the middle of an epoch too, bit for bit.

    Example::

        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        with checkpointed(accelerator, model=model, optimizer=optimizer, loader=loader, epochs=3,
                          extra={"scheduler": scheduler}, tiers=["tcp://10.0.0.7:7070"],
                          every=100) as run:
            for epoch in run.epochs():
                for inputs, targets in loader:
                    with accelerator.accumulate(model):
                        ...

    The scaler, what ``register_for_checkpointing()`` was given, and what Accelerate counts are
    saved too. No ``save_state()``, ``skip_first_batches()`` or seedable sampler is needed. Model,
    optimizer and loader are as ``prepare()`` returned them. A version is taken after an optimizer
    step, before the next batch is fetched; for the rest, see
    :func:`deepvm.checkpoint.training_run`.

    Raises:
        RequestError: an argument is invalid, or ranks hold parts of the model (FSDP, DeepSpeed).
        CheckpointError: a tier cannot be reached, or checkpoints exist but none can be restored.
    """
    given = accelerator.distributed_type
    if given not in _WHOLE:
        raise RequestError("accelerator", str(given), "one whose ranks hold the whole model")
    found = prepared(loader)
    registered = accelerator._custom_objects
    more: dict[str, Any] = {f"registered.{n}": value for n, value in enumerate(registered)}
    if accelerator.scaler is not None:
        more["scaler"] = accelerator.scaler
    more["accelerate"] = AccelerateState(accelerator, loader)
    session = Session(found, extra, sigterm, own=more, model=model, optimizer=optimizer, **options)
    return AcceleratedRun(session, epochs, loader)
