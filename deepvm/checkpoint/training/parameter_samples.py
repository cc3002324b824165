"""Some elements of parameters, compared later: version counters miss ``.data`` and fused steps."""

from __future__ import annotations

import logging
from typing import Any

import torch

from deepvm.checkpoint.format.sharded import local
from deepvm.checkpoint.training.hooks import without_autograd

_ELEMENTS = 256
Samples = list[torch.Tensor]

log = logging.getLogger("deepvm.checkpoint")


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The parameters of all its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def spread(parameters: list[Any], limit: int) -> list[Any]:
    """About so many of the trainable ones, the first among them."""
    trainable = [p for p in parameters if p.requires_grad]
    return trainable[:: len(trainable) // limit + 1]


def sampled(parameters: list[Any]) -> Samples | None:
    """Copies of some elements of each; None if they cannot be read now."""
    try:
        with without_autograd():
            dense = [t for t in map(local, parameters) if t.layout is torch.strided]
            if dense and dense[0].is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            flat = [t.detach().reshape(-1) for t in dense]
            return [t[:: len(t) // _ELEMENTS + 1].clone() for t in flat]
    except Exception as error:  # in a transformation, or with tensors that are none
        log.debug("parameters cannot be compared now: %s", error)
        return None


def differ(before: Samples | None, now: Samples | None) -> bool:
    """Whether values differ; False if the parameters are others, or unknown."""
    if before is None or now is None or [_kind(t) for t in before] != [_kind(t) for t in now]:
        return False
    with without_autograd():
        pairs = zip(before, now, strict=True)
        return any(not torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def _kind(sample: torch.Tensor) -> tuple[object, ...]:
    return sample.shape, sample.dtype, sample.device
