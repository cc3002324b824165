"""Which runs a run is compared with: undisturbed ones of the same training, in the same folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.lab.records import CONFIG, Records


def with_references(records: Records, runs: Path) -> Records:
    """With the final parameters of the undisturbed runs of the same training, those next to it."""
    finals = []
    for path in sorted(runs.glob(f"{_prefix(records)}*/{CONFIG}")):
        try:
            other = records if path.parent == records.folder else Records.read(path.parent)
        except DataError:  # it is judged by itself
            continue
        if (
            other.config["strikes"]
            or other.config["disk"]
            or not _same(records.config, other.config)
        ):
            continue
        try:
            finals.append(other.final)
        except DataError:
            continue
    return replace(records, references=tuple(finals))


def _prefix(records: Records) -> str:
    """Prefix of names of runs of this data set and model: large matrices need not read all."""
    config = records.config
    name = f"{config['dataset']['name']}-{config['model']['name']}-"
    return name if records.folder.name.startswith(name) else ""


_SAME = (
    "dataset",
    "dataset_size",
    "model",
    "seed",
    "global_batch",
    "accumulate",
    "steps",
    "virtual_shards",
)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs should end with the same parameters."""
    worlds = one["virtual_shards"] or one["worlds"] == other["worlds"]
    return bool(worlds) and all(one[key] == other[key] for key in _SAME)
