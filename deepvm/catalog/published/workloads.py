"""A workload read from what a user says: a preset, a size or a file, and how it is trained."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

from deepvm.catalog.published.model_file import is_file_name, read_model
from deepvm.catalog.published.models import find_model, model_of_size, parse_count
from deepvm.core.spelling import one_of
from deepvm.core.training.model import Model
from deepvm.core.training.workload import Method, Precision, Scaling, Workload
from deepvm.core.units import to_whole
from deepvm.errors import RequestError

AUTO = "auto"
SHARDED_FROM = 1e9
"""Parameters from which on ``auto`` shards: their state, 18 GB, leaves little room for activations on GPUs of 24 GB."""
_MOST_SEQUENCE = 10_000_000
_MOST_BATCH = 10_000_000
_MOST_UNITS = 1e18
_Kind = TypeVar("_Kind", bound=Enum)


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
    length = None if seq is None else _whole(seq, "seq", _MOST_SEQUENCE)
    found = model_of_size(params, length) if params is not None else _model(model, length)
    batch: float = found.batch
    scaling = Scaling.WEAK
    if batch_per_gpu is not None:
        batch = _whole(batch_per_gpu, "batch_per_gpu", _MOST_BATCH)
    elif global_batch is not None:
        batch = _whole(global_batch, "global_batch", _MOST_BATCH)
        scaling = Scaling.STRONG
    return Workload(
        model=found,
        method=_method(method, found),
        precision=_choice(Precision, precision, "precision"),
        batch=batch,
        scaling=scaling,
        checkpointing=activation_checkpointing,
        samples=_samples(found, **amount),
    )


def _method(name: str, model: Model) -> Method:
    if name == AUTO:
        return Method.FSDP if model.parameters >= SHARDED_FROM else Method.DDP
    method = _choice(Method, name, "method", also=(AUTO,))
    if method is Method.LORA and model.transformer is None:
        raise RequestError("method", name, f"ddp or fsdp: {model.name} is no transformer")
    return method


def _model(model: str | Model, length: int | None) -> Model:
    found = model if isinstance(model, Model) else _named(model)
    if length is None or length == found.sequence:
        return found
    longer = found.with_sequence(length)
    # As many tokens at once: the model's batch is for its own sequence.
    same = max(1, round(found.batch * found.sequence / length))
    return replace(longer, batch=same) if longer.unit == "tokens" else longer


def _named(model: str) -> Model:
    return read_model(model) if is_file_name(model) else find_model(model)


def _samples(
    model: Model,
    tokens: str | float | None = None,
    samples: str | float | None = None,
    epochs: str | float | None = None,
    dataset_size: str | float | None = None,
) -> float | None:
    """How many samples the job trains on in all, None if the user does not say."""
    given = {"tokens": tokens, "samples": samples, "epochs": epochs}
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1:
        raise RequestError(said[1], given[said[1]], f"either --{said[0]} or --{said[1]}")
    if (epochs is None) != (dataset_size is None):
        name, value = ("dataset_size", dataset_size) if epochs is None else ("epochs", epochs)
        raise RequestError(name, value, "--epochs and --dataset-size together")
    if tokens is not None:
        if model.unit != "tokens":
            raise RequestError(
                "tokens", tokens, f"--samples: {model.name} is trained on {model.unit}"
            )
        return _count(tokens, "tokens") / model.units_per_sample
    if samples is not None:
        return _count(samples, "samples")
    if epochs is None or dataset_size is None:
        return None
    return _count(epochs, "epochs") * _count(dataset_size, "dataset_size") / model.units_per_sample


def _count(value: str | float, option: str) -> float:
    return parse_count(
        value, option, "a number above 0, such as 2.5, 300k, 50M or 2B", 1e-6, _MOST_UNITS
    )


def _whole(value: str | int, option: str, most: int) -> int:
    allowed = f"a whole number from 1 to {most}"
    number = (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12
        else value
    )
    meant = (
        re.fullmatch(r"([0-9]{1,4})k", value, re.IGNORECASE | re.ASCII)
        if isinstance(value, str)
        else None
    )
    if option == "seq" and meant and int(meant[1]):
        allowed += f"; did you mean {1024 * int(meant[1])}?"  # as models are named: 128k is 131072
    return to_whole(number, option, allowed, least=1, most=most)


def _choice(kinds: type[_Kind], value: str, option: str, also: tuple[str, ...] = ()) -> _Kind:
    try:
        return kinds(value)
    except ValueError:
        raise RequestError(
            option, value, one_of(value, [*also, *(str(k.value) for k in kinds)])
        ) from None
