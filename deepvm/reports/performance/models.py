"""The models that can be named."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.core.training.model import Model
from deepvm.reports.tables import Column, print_items, print_lines


def print_models(models: Sequence[Model]) -> None:
    """A row for each."""
    print_items([_cells(model) for model in models], also="-o json")
    other = "--params 7B for a language model by its size, or --model FILE.yaml with its figures"
    print_lines(["", f"Any other: {other}."])


def _cells(model: Model) -> dict[Column, str]:
    return {
        Column("model"): model.name,
        Column("parameters", "right"): f"{model.parameters / 1e6:,.0f} M",
        Column("a sample"): f"{model.units_per_sample} {model.unit}",
        Column("forward TFLOP", "right", drop=1): f"{model.flop / 1e12:.3g}",
        Column("batch of a GPU", "right", drop=2): f"{model.batch:g}",
        Column("source", drop=3): model.source,
    }
