"""Copies that take as long as a large model's, so that the next step starts meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from deepvm.checkpoint.format.tensor_bytes import ByteSamples
from deepvm.checkpoint.snapshot import snapshotter
from deepvm.checkpoint.snapshot.host_buffer import Slot


def slow_copy(pause_s: float) -> Callable[..., None]:
    """``Slot.copy`` with a pause before each piece; to be put in its place."""
    copy = Slot.copy

    def slow(self: Slot, sources: Any, which: Any, *reached: Any) -> None:
        for number in which:
            time.sleep(pause_s)
            copy(self, sources, [number])
        copy(self, sources, [], *reached)

    return slow


def notice_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off what notices a state that changes while it is copied: a version that mixes two
    steps is then made.
    """
    stop_noticing(monkeypatch.setattr)


def stop_noticing(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """For good, in a process of its own."""
    replace(snapshotter, "changed_since", lambda seen: set())
    replace(ByteSamples, "changed", lambda samples: set())
