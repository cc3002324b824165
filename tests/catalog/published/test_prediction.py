"""Predictions as Python asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from deepvm.catalog.published.performance import predict
from deepvm.errors import RequestError

LLAMA: dict[str, Any] = {"model": "llama-8b", "method": "fsdp"}


def test_gpus_are_in_vms_as_they_are_rented() -> None:
    found = predict("H100", 64, **LLAMA)
    assert (found.vms[0], found.machine.gpus, found.workload.model.name) == (8, 8, "llama-8b")
    assert predict("H100", 64, 16, **LLAMA).vms[0] == 16


def test_software_and_memory() -> None:
    eager, tuned = (
        predict("A100", 8, gpu_memory="80GB", software=name, **LLAMA) for name in ("eager", "tuned")
    )
    assert tuned.throughput[0] > eager.throughput[0]
    # In fp8 casts that are not fused cost more than they save: nobody trains so without a compiler.
    fp8 = [
        predict("H100", 8, software=name, **LLAMA | {"precision": "fp8"})
        for name in ("transformers", "compiled")
    ]
    assert fp8[0].throughput[0] == fp8[1].throughput[0]
    assert predict("A100", 8, gpu_memory="40GB", **LLAMA).machine.accelerator.memory_gib < 60


def test_wrong_arguments_are_named() -> None:
    for words, options, named in [
        (("H10O",), {}, r"gpu: 'H10O'.*did you mean H100"),
        (("H100", 0), {}, "gpus: 0 "),
        (("H100", 8, 0), {}, "nodes: 0 "),
        (("H100", 8, 3), {}, "nodes: 3 .*divides 8"),
        (("H100", "many"), {}, "gpus: 'many'"),
        (("H100",), {"software": "magic"}, "software: 'magic'"),
        (("H100",), {"gpu_memory": "some"}, "gpu_memory"),
        (("H100",), {"method": "magic"}, "method: 'magic'"),
        (("H100",), {"model": ""}, "model"),
    ]:
        with pytest.raises(RequestError, match=named):
            predict(*words, **(LLAMA | options))
