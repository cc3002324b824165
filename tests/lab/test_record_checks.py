"""Records hold what ``data/documents/lab.json`` describes."""

from __future__ import annotations

from typing import Any

import pytest

from deepvm.documents.declared import properties
from deepvm.lab import record_checks


@pytest.mark.parametrize(
    "kind",
    [
        record_checks.LabModel,
        record_checks.LabDataset,
        record_checks.LabStrike,
        record_checks.LabRun,
        record_checks.LabAttempt,
        record_checks.LabSupervisor,
    ],
)
def test_what_is_validated_is_what_is_described(kind: Any) -> None:
    declared = properties(f"lab.{kind.__name__}")
    assert set(declared) == set(kind.__annotations__)
    optional = {key for key in declared if declared[key].get("optional")}
    assert optional == set(kind.__optional_keys__)
