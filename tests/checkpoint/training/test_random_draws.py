"""Counting random numbers between two states of the generators."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepvm.checkpoint.training.between_steps import draws_between
from deepvm.checkpoint.training.state import random_state


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), skipped=st.integers(0, 1300), drawn=st.integers(0, 3000))
def test_draws_are_counted_for_each_generator(seed: int, skipped: int, drawn: int) -> None:
    """One word for a float of torch and NumPy's float32, two for Python's float."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.rand(skipped)
    before = random_state()
    torch.rand(drawn)
    for _ in range(drawn // 7):
        random.random()
    numpy.random.random(drawn // 3)
    counts = {"torch": drawn, "python": 2 * (drawn // 7), "numpy": 2 * (drawn // 3)}
    assert draws_between(before, random_state()) == {
        name: count % 624 for name, count in counts.items() if count
    }


@pytest.mark.gpu
def test_draws_on_a_gpu_are_counted() -> None:
    """Its generator counts itself."""
    torch.rand(1, device="cuda")
    before = random_state()
    torch.rand(1, device="cuda")
    (count,) = draws_between(before, random_state()).values()
    assert count > 0
