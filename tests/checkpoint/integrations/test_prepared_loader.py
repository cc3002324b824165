"""Loaders that Accelerate has prepared, which fetch one batch ahead: cut anywhere, they go on."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip(
    "accelerate", reason="needs accelerate: pip install 'deepvm[trainers]'"
)

from support.checkpoint.cut_loaders import seed  # noqa: E402
from support.checkpoint.loaders import EPOCHS, KINDS, Items, noise, step  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from deepvm.checkpoint.integrations.accelerate import AccelerateState  # noqa: E402
from deepvm.checkpoint.integrations.session import iterate_through, prepared  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")]


class Cut(Exception):
    """The place was reached."""


def through(
    kind: str, seedable: bool, at: int, state: Any = None, **more: Any
) -> tuple[list[Any], Any]:
    """What a training sees, until a place where a version may be taken.

    With a position from where it was cut.
    """
    accelerator = accelerate.Accelerator(
        cpu=True,
        dataloader_config=accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=seedable),
    )
    loader = accelerator.prepare(KINDS[kind](**more))
    found, counts, seen, places = (
        prepared(loader),
        AccelerateState(accelerator, loader),
        list[Any](),
        [0],
    )

    def here() -> None:
        places[0] += 1
        if places[0] == at:
            raise Cut

    if state is not None:
        position, numbers = state
        found.load_state_dict(position)
        counts.load_state_dict(numbers)
        noise()
    found.before_batch = here
    try:
        while loader.iteration < EPOCHS:
            for batch in loader:
                step(batch, seen)
            noise()
    except Cut:
        pass
    state = found.state_dict(), counts.state_dict()
    del loader, found, counts
    gc.collect()
    return seen, state


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("kind", ["shuffled", "in order", "with a generator", "stream"])
def test_cut_anywhere(kind: str, seedable: bool) -> None:
    seed(1)
    undisturbed, _ = through(kind, seedable, 0)
    assert len(undisturbed) >= 15
    for at in (1, 2, 3, 5, 8, 9, 10, 13, 16):
        seed(1)
        seen, state = through(kind, seedable, at)
        assert seen == undisturbed[: len(seen)]
        seed(2)
        assert through(kind, seedable, 0, state)[0] == undisturbed[len(seen) :], f"cut at {at}"


def test_cut_with_workers() -> None:
    seed(1)
    undisturbed, _ = through("shuffled", True, 0, num_workers=2)
    for at in (3, 4, 9, 11):
        seed(1)
        seen, state = through("shuffled", True, at, num_workers=2)
        seed(2)
        assert through("shuffled", True, 0, state, num_workers=2)[0] == undisturbed[len(seen) :]


def test_it_stays_a_loader_and_can_be_taken_twice() -> None:
    loader = DataLoader(Items(), 4, shuffle=True)
    kind = type(loader)
    first = iterate_through(loader)
    second = iterate_through(loader, stateful=True)
    assert isinstance(loader, kind) and type(loader).__name__ == "DataLoader"
    next(iter(loader))
    assert (first.batch, second.batch) == (0, 1)
    assert loader.state_dict()["batch"] == 1  # type: ignore[attr-defined]
    for plain in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        assert type(plain) is kind and len(plain) == 6


def test_what_was_not_prepared_is_refused() -> None:
    with pytest.raises(RequestError, match="prepare"):
        prepared(DataLoader(Items(), 4))
