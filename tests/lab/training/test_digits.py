"""The digits are read without scikit-learn's seconds of loading, and are those that it gives."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_they_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    import torch

    from deepvm.lab.training.datasets import digits

    images, targets = datasets.load_digits(return_X_y=True)
    found = digits(None)
    assert torch.equal(found.inputs, torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 8 - 1)
    assert found.targets.tolist() == targets.tolist() and found.classes == 10


def test_ranks_do_not_load_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    code = (
        "import sys; from deepvm.lab.training.datasets import digits; digits(None); assert"
        " 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
