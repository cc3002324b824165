"""A workload read from what a user says: a preset, a size or a file, and how it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deepvm.catalog.published.model_file import is_file_name, read_model
from deepvm.catalog.published.models import find_model, model_of_size, parse_count
from deepvm.core.options import one_of_kind, whole
from deepvm.core.training.model import Model
from deepvm.core.training.workload import Method, Precision, Scaling, Workload
from deepvm.errors import RequestError

AUTO = "auto"
SHARDED_FROM = 1e9
"""Parameters from which on ``auto`` shards.

Their state, 18 GB, leaves little room for activations on GPUs of 24 GB.
"""
_MOST = 10_000_000
_MOST_UNITS = 1e18


def read_workload(
    *,
    model: str | Model = "",
    params: str | float | None = None,
    seq: str | int | None = None,
    method: str = AUTO,
    precision: str = Precision.AUTO.value,
    batch_per_gpu: str | int | None = None,
    global_batch: str | int | None = None,
    activation_checkpointing: bool | None = None,
    **amount: Any,
) -> Workload:
    """Read options of :class:`deepvm.core.training.workload_options.AmountOptions`.

    Raises a RequestError, and a CatalogFormatError for a bad model file.
    """
    if bool(model) == (params is not None):
        raise RequestError(
            "model",
            model or "",
            "either a model or --params, such as --model llama-8b or --params 7B",
        )
    if batch_per_gpu is not None and global_batch is not None:
        raise RequestError("global_batch", global_batch, "either --batch-per-gpu or --global-batch")
    length = None if seq is None else whole(_MOST)(seq, "seq")
    if params is not None:
        found = model_of_size(params, length)
    else:
        found = _model(model, length)
    batch: float = found.batch
    scaling = Scaling.WEAK
    if batch_per_gpu is not None:
        batch = whole(_MOST)(batch_per_gpu, "batch_per_gpu")
    elif global_batch is not None:
        batch = whole(_MOST)(global_batch, "global_batch")
        scaling = Scaling.STRONG
    return Workload(
        model=found,
        method=_method(method, found),
        precision=one_of_kind(Precision)(precision, "precision"),
        batch=batch,
        scaling=scaling,
        checkpointing=activation_checkpointing,
        samples=_samples(found, **amount),
    )


def _method(name: str, model: Model) -> Method:
    if name == AUTO:
        if model.parameters >= SHARDED_FROM:
            return Method.FSDP
        return Method.DDP
    method: Method = one_of_kind(Method)(name, "method")
    if method is Method.LORA and model.transformer is None:
        raise RequestError("method", name, f"ddp or fsdp: {model.name} is no transformer")
    return method


def _model(model: str | Model, length: int | None) -> Model:
    if isinstance(model, Model):
        found = model
    else:
        if is_file_name(model):
            found = read_model(model)
        else:
            found = find_model(model)
    if length is None or length == found.sequence:
        return found
    longer = found.with_sequence(length)
    # As many tokens at once: the model's batch is for its own sequence.
    same = max(1, round(found.batch * found.sequence / length))
    if longer.unit == "tokens":
        return replace(longer, batch=same)
    return longer


def _samples(
    model: Model,
    tokens: Any = None,
    samples: Any = None,
    epochs: Any = None,
    dataset_size: Any = None,
) -> float | None:
    """How many samples the job trains on in all, None if the user does not say."""
    amount = {"tokens": tokens, "samples": samples, "epochs": epochs, "dataset_size": dataset_size}
    given = {name: value for name, value in amount.items() if value is not None}
    chosen: list[str] = [n for n in ("tokens", "samples", "epochs") if n in given]
    first, *others = chosen or [""]
    if others:
        raise RequestError(others[0], given[others[0]], f"either --{first} or --{others[0]}")
    if ("epochs" in given) != ("dataset_size" in given):
        name, value = next((n, given[n]) for n in ("dataset_size", "epochs") if n in given)
        raise RequestError(name, value, "--epochs and --dataset-size together")
    if first == "tokens" and model.unit != "tokens":
        allowed = f"--samples: {model.name} is trained on {model.unit}"
        raise RequestError(first, given[first], allowed)
    allowed = "a number above 0, such as 2.5, 300k, 50M or 2B"
    counts = {n: parse_count(value, n, allowed, 1e-6, _MOST_UNITS) for n, value in given.items()}
    if not first:
        return None
    if first == "samples":
        return counts[first]
    return counts[first] * counts.get("dataset_size", 1.0) / model.units_per_sample
