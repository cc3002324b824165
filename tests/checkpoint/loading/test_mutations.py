"""A loader that forgets one thing is found out by the tests of cuts: here they must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.cut_loaders import check  # noqa: E402
from support.checkpoint.loaders import KINDS  # noqa: E402
from support.effort import sampled  # noqa: E402

from deepvm.checkpoint.loading import resumable_loader, worker_states  # noqa: E402
from deepvm.checkpoint.loading.random_states import GeneratorStates  # noqa: E402
from deepvm.checkpoint.loading.resumable_loader import ResumableLoader, _Resume  # noqa: E402

Patch = pytest.MonkeyPatch


def nothing(*_: Any) -> None:
    """Instead of what is forgotten."""


def without(field: str) -> Callable[[Patch], None]:
    """A record without one of its fields."""
    made = _Resume.of.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, batch: int, record: Any) -> Any:
        return made(cls, batch, {name: value for name, value in record.items() if name != field})

    return lambda patch: patch.setattr(_Resume, "of", classmethod(forgetful))


MUTATIONS: dict[str, tuple[Callable[[Patch], None], str, dict[str, Any], int, list[int]]] = {
    "dropout goes on from another state": (
        lambda patch: patch.setattr(resumable_loader, "restore", nothing), "shuffled", {}, 0, [4]),
    "the sampler begins with another state": (
        lambda patch: patch.setattr(GeneratorStates, "put_back", nothing), "shuffled", {}, 0, [4]),
    "the workers are seeded anew": (without("made"), "shuffled", {"num_workers": 2}, 0, [2]),
    "the workers' states are forgotten": (
        lambda patch: patch.setattr(worker_states, "restore", nothing),
        "shuffled", {"num_workers": 2}, 0, [5]),
    "the wrong worker goes on": (
        lambda patch: patch.setattr(ResumableLoader, "_start_of", lambda self, batch: batch),
        "shuffled", {"num_workers": 2}, 0, [4]),
    "a batch that was fetched ahead is another": (without("ahead"), "shuffled", {}, 1, [4]),
    "a batch that was fetched ahead is lost": (
        lambda patch: patch.setattr(ResumableLoader, "batch", property(lambda self: self._fetched)),
        "in order", {}, 1, [4]),
    "persistent workers begin again": (
        without("workers"), "shuffled", {"num_workers": 2, "persistent_workers": True}, 0, [9]),
    "a generator of its own goes on from elsewhere": (
        lambda patch: patch.setattr(resumable_loader, "generators_of", lambda loader: []),
        "with a generator", {}, 0, [9]),
    "when the sampler drew is forgotten": (without("first"), "shuffled", {}, 0, [4]),
}  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize("what", sampled(MUTATIONS))
def test_it_is_found_out(what: str, monkeypatch: Patch) -> None:
    change, kind, more, ahead, cuts = MUTATIONS[what]
    change(monkeypatch)
    with pytest.raises(AssertionError):
        check(lambda: KINDS[kind](**more), cuts, ahead)


@pytest.mark.system
@pytest.mark.parametrize("what", sampled(MUTATIONS))
def test_it_is_right_without(what: str) -> None:
    _, kind, more, ahead, cuts = MUTATIONS[what]
    check(lambda: KINDS[kind](**more), cuts, ahead)
