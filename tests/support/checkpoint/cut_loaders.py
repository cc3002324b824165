"""A training that is cut at a place where a version may be taken, and goes on with new objects."""

from __future__ import annotations

import gc
import io
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch

from deepvm.checkpoint import ResumableLoader
from support.checkpoint.loaders import EPOCHS, noise, plain, step

WORKERS: dict[str, dict[str, Any]] = {
    "0": {},
    "2": {"num_workers": 2},
    "2, kept": {"num_workers": 2, "persistent_workers": True},
}


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def cut(made: Callable[[], Any], at: int, ahead: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """What a training sees until the ``at``-th place where a version may be taken, and its state
    there.
    """
    seen: list[Any] = []
    loader = ResumableLoader(made(), ahead=ahead)
    places: list[dict[str, Any]] = []

    class Cut(Exception):
        """The place was reached."""

    def here() -> None:
        places.append({})
        if len(places) > at:
            raise Cut

    loader.before_batch = here
    try:
        for _ in range(EPOCHS):
            for batch in looked_ahead(loader) if ahead else loader:
                step(batch, seen)
            noise()
    except Cut:
        pass
    stream = io.BytesIO()
    torch.save(loader.state_dict(), stream)
    _end_workers(loader)
    stream.seek(0)
    return seen, torch.load(stream, weights_only=True)


def looked_ahead(loader: Any) -> Any:
    """As Accelerate iterates: one batch is fetched ahead, which shows where the end is."""
    found = iter(loader)
    batch = next(found)
    for following in found:
        yield batch
        batch = following
    yield batch


def resumed(made: Callable[[], Any], state: dict[str, Any], ahead: int = 0) -> list[Any]:
    """What a new training sees with this state."""
    seen: list[Any] = []
    loader = ResumableLoader(made(), ahead=ahead)
    loader.load_state_dict(state)
    noise()  # whatever is drawn between a restore and the first batch
    for _ in range(loader.epoch, EPOCHS):
        for batch in looked_ahead(loader) if ahead else loader:
            step(batch, seen)
        noise()
    _end_workers(loader)
    return seen


def _end_workers(loader: ResumableLoader) -> None:
    """Workers that still run while others are forked take 5 s to end."""
    if loader.num_workers:
        loader._copy = None
        gc.collect()


def check(made: Callable[[], Any], cuts: list[int], ahead: int = 0) -> None:
    seed(1)
    undisturbed = plain(looked_ahead_each(made()) if ahead else made())
    for at in cuts:
        seed(1)
        seen, state = cut(made, at, ahead)
        assert seen == undisturbed[: len(seen)]
        seed(2)
        assert resumed(made, state, ahead) == undisturbed[len(seen) :], (
            f"cut at {at}, after {len(seen)} steps"
        )


class looked_ahead_each:  # noqa: N801
    """Each pass with a look ahead."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return looked_ahead(self.loader)
