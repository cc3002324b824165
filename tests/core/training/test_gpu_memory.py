from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.places import TESTS

from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.published.workloads import find_model, model_of_size
from deepvm.core.training.roofline import Accelerator, fit_memory, least_gpus, state_bytes
from deepvm.core.training.workload import Method, Precision, Scaling, Workload

SIZES = np.arange(1.0, 65.0)
BF16 = Precision.BF16


def gpu(name: str, memory: float | None = None) -> Accelerator:
    found = find_accelerator(name, memory)
    assert found is not None
    return found


def workloads() -> st.SearchStrategy[Workload]:
    return st.builds(
        Workload,
        st.floats(1e8, 1e11).map(model_of_size),
        st.sampled_from(Method),
        st.just(BF16),
        st.integers(1, 256),
        st.sampled_from(Scaling),
        st.sampled_from([None, False, True]),
    )


@settings(max_examples=examples(100))
@given(workloads(), st.sampled_from(["T4", "A10G", "L40S", "A100", "H100", "B200"]))
def test_micro_batches_make_up_the_batch_and_fit(workload: Workload, name: str) -> None:
    if not (precision := gpu(name).precision(Precision.AUTO)):
        raise AssertionError(name)
    found = fit_memory(workload, gpu(name), precision, SIZES)
    batch = np.array([workload.batch_on(int(k)) for k in SIZES])
    assert np.allclose(found.micro_batch * found.passes, np.ceil(batch - 1e-9)), "samples are whole"
    fits = found.fits
    assert (
        np.ceil(found.micro_batch[fits] - 1e-9) * found.sample_bytes[fits]
        <= found.free_bytes[fits] + 1
    ).all()
    assert (batch[fits] >= 1 - 1e-9).all()


@settings(max_examples=examples(100))
@given(workloads())
def test_sharding_over_more_gpus_never_needs_more_memory(workload: Workload) -> None:
    fsdp = replace(workload, method=Method.FSDP, scaling=Scaling.WEAK)
    state = state_bytes(fsdp, BF16, SIZES[1:], sharded=True)
    assert (np.diff(state) <= 0).all()
    fits = fit_memory(fsdp, gpu("A100"), BF16, SIZES).fits
    assert (np.diff(fits[1:].astype(int)) >= 0).all()


def test_an_8b_model_as_engineers_know_it() -> None:
    """16 bytes a parameter: 128 GB of state, 16 GB on each of 8, and 2 GB of its first and last
    layer, gathered.
    """
    workload = Workload(find_model("llama-8b"), Method.FSDP, BF16, 1)
    state = state_bytes(workload, BF16, np.array([8.0]), sharded=True)
    assert state[0] == pytest.approx(16.06e9 + 2 * 2 * 128_256 * 4096, rel=0.01)
    assert workload.saved_bytes == pytest.approx(96.4e9, rel=0.001)
    assert least_gpus(workload, gpu("A100", 80), BF16) == 2
    assert least_gpus(replace(workload, method=Method.DDP), gpu("A100", 80), BF16) is None


def test_lora_on_one_gpu() -> None:
    for model, name, memory, fits in [
        ("llama-8b", "A10G", 24, True),
        ("llama-8b", "T4", 16, False),  # 16 GB of weights alone
        ("llama-70b", "H100", 80, False),
        ("llama-70b", "H200", 141, False),
        ("llama-13b", "L40S", 48, True),
    ]:
        workload = Workload(find_model(model), Method.LORA, Precision.AUTO, 1)
        precision = gpu(name, memory).precision(Precision.AUTO)
        assert precision is not None
        assert bool(fit_memory(workload, gpu(name, memory), precision, np.ones(1)).fits[0]) is fits


def test_lora_splits_weights_only_where_it_must() -> None:
    small, large = (
        Workload(find_model(m), Method.LORA, BF16, 1) for m in ("llama-8b", "llama-70b")
    )
    eight = np.array([8.0])
    assert not fit_memory(small, gpu("H100"), BF16, eight).sharded[0]
    assert fit_memory(large, gpu("H100"), BF16, eight).sharded[0]


def test_strong_scaling_ends_where_a_gpu_has_no_sample() -> None:
    workload = Workload(find_model("resnet50"), Method.DDP, Precision.FP16, 16, Scaling.STRONG)
    assert (
        fit_memory(workload, gpu("T4"), Precision.FP16, SIZES).fits.tolist()
        == [True] * 16 + [False] * 48
    )


def test_checkpointing_is_what_usual_recipes_do() -> None:
    def chosen(model: str, method: Method, batch: int, asked: bool | None = None) -> bool:
        workload = Workload(find_model(model), method, BF16, batch, checkpointing=asked)
        return bool(fit_memory(workload, gpu("H100"), BF16, np.array([8.0])).checkpointing[0])

    assert chosen("llama-8b", Method.FSDP, 1)
    assert not chosen("llama-8b", Method.FSDP, 1, asked=False)
    assert not chosen("gpt2", Method.DDP, 8)
    assert chosen("gpt2", Method.DDP, 4096)
    assert not chosen("resnet50", Method.DDP, 65536)


def test_what_pytorch_took() -> None:
    """Peaks of real runs on one H100 and one H200 (scripts/measure_transformers.py, 26 November
    2026).
    """
    off = []
    with (TESTS / "recorded" / "gpu_runs.csv").open(encoding="utf-8", newline="") as file:
        for run in csv.DictReader(file):
            model, precision, batch = (
                find_model(run["model"]),
                Precision(run["precision"]),
                float(run["batch"]),
            )
            if run["tokens"]:
                model = model.with_sequence(int(run["tokens"]))
            workload = Workload(
                model,
                Method(run["method"]),
                precision,
                batch,
                checkpointing=run["checkpointing"] == "1",
            )
            one = np.ones(1)
            need = float(state_bytes(workload, precision, one, sharded=False)[0])
            need += batch * float(
                fit_memory(workload, gpu(run["gpu"]), precision, one).sample_bytes[0]
            )
            if not run["allocated_gib"]:
                # It found no memory; a block of 16 GiB needs more than what is free in all.
                assert need > 0.95 * gpu(run["gpu"]).memory_bytes - 1.2e9, run
            elif run["model"] != "gpt2":
                # Its GELU is made of many operations there, and it takes half as much again
                off.append(need / float(run["allocated_gib"]) / 2**30 - 1)
    assert len(off) > 30
    assert np.median(np.abs(off)) < 0.08
    assert min(off) > -0.3 and max(off) < 0.25
