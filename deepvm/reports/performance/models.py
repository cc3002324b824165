"""The models that can be named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.core.training.model import Model
from deepvm.reports.tables import Column, print_items, print_lines

SCHEMA_VERSION = "deepvm.models/1"


def print_models(models: Sequence[Model]) -> None:
    """A row for each."""
    items = [
        {
            Column("model"): m.name,
            Column("parameters", "right"): f"{m.parameters / 1e6:,.0f} M",
            Column("a sample"): (
                f"{m.sequence} tokens" if m.unit == "tokens" else f"1 {m.unit.removesuffix('s')}"
            ),
            Column("forward TFLOP", "right", drop=1): f"{m.flop / 1e12:.3g}",
            Column("batch of a GPU", "right", drop=2): f"{m.batch:g}",
            Column("source", drop=3): m.source,
        }
        for m in models
    ]
    print_items(items, also="-o json")
    print_lines(
        [
            "",
            (
                "Any other: --params 7B for a language model by its size, or --model FILE.yaml with"
                " its figures."
            ),
        ]
    )


def document(models: Sequence[Model]) -> dict[str, Any]:
    """For programs; operations of one sample's forward pass."""
    return {"schema_version": SCHEMA_VERSION, "models": [_row(m) for m in models]}


def _row(m: Model) -> dict[str, Any]:
    return {
        "model": m.name,
        "family": m.family,
        "parameters": m.parameters,
        "unit": m.unit,
        "sequence": m.sequence,
        "forward_flop": m.flop,
        "batch_per_gpu": m.batch,
        "source": m.source,
    }
