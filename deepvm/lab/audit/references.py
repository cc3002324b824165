"""Which runs a run is compared with: undisturbed ones of the same training, in the same folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.lab.records import CONFIG, Records

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


def with_references(records: Records, runs: Path) -> Records:
    """With the final parameters of the undisturbed runs of the same training, those next to it."""
    config = records.config
    # Large matrices need not read all
    prefix = f"{config['dataset']['name']}-{config['model']['name']}-"
    if not records.folder.name.startswith(prefix):
        prefix = ""
    finals = []
    for path in sorted(runs.glob(f"{prefix}*/{CONFIG}")):
        with contextlib.suppress(DataError):  # it is judged by itself
            other = Records.read(path.parent)
            disturbed = other.config["strikes"] or other.config["disk"]
            if not disturbed and _same(config, other.config):
                finals.append(other.final)
    return replace(records, references=tuple(finals))


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs should end with the same parameters."""
    worlds = one["virtual_shards"] or one["worlds"] == other["worlds"]
    return bool(worlds) and all(one[key] == other[key] for key in _SAME)
