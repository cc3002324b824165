"""Tensors of rarer kinds: saved with the values that they show, or refused in words that say what
is wrong.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.checkpoint.zip_images import write  # noqa: E402

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.files.stripe import plan_part  # noqa: E402
from deepvm.checkpoint.format.flatten import flatten  # noqa: E402
from deepvm.checkpoint.format.layout import Layout, Segment  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402


def test_conjugate_and_negative_views_are_saved_with_the_values_that_they_show(
    tmp_path: Path,
) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    tree = {
        "plain": values,
        "conjugate": values.conj(),  # of the same memory
        "other": (values + 1).conj()[1:],
        "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "both": torch._neg_view(values.conj()),
    }
    write(tree, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    for name, tensor in tree.items():
        assert loaded[name].tolist() == tensor.tolist(), name
    assert flatten(tree).structure != flatten({**tree, "conjugate": values}).structure


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), ("torch.sparse_coo", ".to_dense()")),
        (lambda: torch.eye(3).to_sparse_csr(), ("torch.sparse_csr", ".to_dense()")),
        (
            lambda: torch.empty(2, device="meta"),
            ("on the device meta", "to_empty", "persistent=False"),
        ),
        (quantized, ("torch.qint8", ".int_repr()")),
        (lambda: torch._efficientzerotensor((3,)), ("zeros without memory", "torch.zeros(...)")),
    ],
    ids=["coo", "csr", "meta", "quantized", "zeros"],
)
def test_what_cannot_be_saved_is_named_with_a_next_step(
    make: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    model = torch.nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about csr
        model.register_buffer("odd", make())
    with pytest.raises(RequestError) as caught:
        Checkpointer(
            model=model, optimizer=torch.optim.SGD(model.parameters()), tiers=[tmp_path.as_uri()]
        )
    for word in ("state['model']['odd']", *words):
        assert word in str(caught.value)


def test_two_types_of_one_memory_are_named_with_both_places() -> None:
    values = torch.zeros(2, dtype=torch.cfloat)
    with pytest.raises(RequestError) as caught:
        flatten({"a": values, "b": torch.view_as_real(values)})
    for word in ("torch.float32", "torch.complex64", "state['a']", "state['b']", ".clone()"):
        assert word in str(caught.value)


def test_parts_are_planned_whatever_the_default_device_is() -> None:
    whole = Layout(1000, ((Segment(0, 1000),),), ())
    expected = plan_part(whole, 1, 2)
    with torch.device("meta"):
        assert plan_part(whole, 1, 2) == expected


def test_a_file_is_laid_out_whatever_the_default_device_is(tmp_path: Path) -> None:
    tree = {"a": torch.arange(3.0), "b": 3}
    with torch.device("meta"):
        write(tree, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", weights_only=True)["a"].tolist() == [0, 1, 2]
