"""What every measurement says of its machine."""

from __future__ import annotations

import json
import os
import platform
import socket
from pathlib import Path

import pytest

from deepvm.profiling.hosts.machine import describe


def test_this_machine() -> None:
    document = json.loads(json.dumps(describe()))
    assert set(document) == {
        "processor",
        "cores",
        "memory_bytes",
        "gpus",
        "torch",
        "cuda",
        "kernel",
        "instance_type",
    }
    assert document["cores"] == len(os.sched_getaffinity(0))
    assert document["memory_bytes"] > 2**28
    assert document["processor"]
    assert platform.release() in document["kernel"]
    torch = pytest.importorskip("torch")
    assert document["torch"] == torch.__version__
    assert len(document["gpus"]) == torch.cuda.device_count()
    if len(name := socket.gethostname()) > 4:
        assert name not in json.dumps(document)


@pytest.mark.parametrize(
    ("vendor", "product", "found"),
    [
        ("Amazon EC2", "g4dn.xlarge\n", "g4dn.xlarge"),
        ("Amazon EC2", "u-6tb1.metal", "u-6tb1.metal"),
        ("Amazon EC2", "Not a type", ""),
        ("Xen", "HVM domU", ""),
        ("QEMU", "g4dn.xlarge", ""),
    ],
)
def test_the_type_from_the_firmware(tmp_path: Path, vendor: str, product: str, found: str) -> None:
    folder = tmp_path / "sys/devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text(vendor)
    (folder / "product_name").write_text(product)
    assert describe(tmp_path)["instance_type"] == found


def test_no_firmware_no_type(tmp_path: Path) -> None:
    assert describe(tmp_path)["instance_type"] == ""
