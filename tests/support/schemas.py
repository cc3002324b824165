"""Documents compared with the schemas that ``deepvm schema`` prints."""

from __future__ import annotations

from typing import Any

import jsonschema

from deepvm.services.schemas import described


def check(document: Any, name: str) -> None:
    """The document holds what its schema says, and nothing else."""
    schema = described(name).schema(name)
    found = [
        f"{e.json_path}: {e.message[:200]}"
        for e in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]
    assert not found, found
