"""Configurations of Terraform, read by the tests and by Terraform itself, where it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

terraform = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="terraform is not installed"
)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of arguments, blocks in lists counted as one.

    A map of tags or a list of texts is a leaf.
    """
    blocks = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    if path.endswith("tags") or not blocks or not all(isinstance(b, dict) for b in blocks):
        yield path, value
        return
    for block in blocks:
        for name, inner in block.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."))


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from re.findall(r"(?<!\$)\$\{(.*?)\}", value)
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from expressions(inner)


def apply(found: dict[str, Any], folder: Path, **variables: str) -> dict[str, Any]:
    """What Terraform makes of a configuration: the arguments of each resource as it read them."""
    (folder / "main.tf.json").write_text(json.dumps(found))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_")} | {
        "CHECKPOINT_DISABLE": "1"
    }

    def call(*words: str) -> str:
        out = subprocess.run(
            ["terraform", *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert out.returncode == 0, out.stdout + out.stderr
        return out.stdout

    call("init", "-input=false")
    call("validate")
    call("apply", "-auto-approve", "-input=false", *(f"-var={k}={v}" for k, v in variables.items()))
    values = json.loads(call("show", "-json"))["values"]
    resources = {r["address"]: r["values"].get("input") for r in values["root_module"]["resources"]}
    return {"outputs": {k: v["value"] for k, v in values["outputs"].items()}, **resources}
