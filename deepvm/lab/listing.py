"""What a matrix file can name, with a line for each."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import NamedTuple

from deepvm.lab.faults.fault_registry import FAULTS, find_fault
from deepvm.lab.matrix import shipped
from deepvm.lab.strategies.strategy_registry import SHORT, STRATEGIES, find_strategy
from deepvm.lab.training.datasets import DATASETS
from deepvm.lab.training.models import MODELS, WIDTHS


class Entry(NamedTuple):
    """A name that a matrix file can have."""

    kind: str
    name: str
    what: str


def listing() -> list[Entry]:
    """The first line of the documentation of each."""
    long = {name: f"{name} ({short})" for short, name in SHORT.items()}
    lines = {
        "matrices": {name: _first_comment(path) for name, path in shipped().items()},
        "datasets": {name: _line(one) for name, one in DATASETS.items()},
        "models": {name: f"width {WIDTHS[name]} by default" for name in MODELS},
        "strategies": {long.get(name, name): _line(find_strategy(name)) for name in STRATEGIES},
        "failures": {name: _line(type(find_fault(name))) for name in FAULTS},
    }
    return [Entry(kind, *line) for kind, names in lines.items() for line in names.items()]


def _first_comment(path: Path) -> str:
    comment = path.read_text(encoding="utf-8").partition("\nschema_version")[0]
    text = comment.lstrip("# ").replace("\n# ", " ")
    return text.partition(". ")[0].rstrip(".")


def _line(of: object) -> str:
    text = inspect.getdoc(of) or ""
    return text.partition(". Raises")[0].partition("\n")[0].rstrip(".").replace("``", "")
