from __future__ import annotations

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.places import SHARED

from deepvm.catalog.published.workloads import find_model, model_of_size
from deepvm.core.training.workload import Method, Model, Transformer, Workload
from deepvm.errors import RequestError

RUNS = SHARED / "data" / "perf" / "llm_foundry_throughput.csv"
PEAKS = {"A100": 312e12, "H100": 989e12}


@pytest.mark.skipif(not RUNS.exists(), reason="the shared data are not here")
def test_operations_are_those_of_published_utilization() -> None:
    """MFU of the published runs, recomputed from our operations.

    Theirs count learned positions as well.
    """
    with RUNS.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if "fp8" not in r["precision"]]
    assert len(rows) > 150
    for row in rows:
        model = find_model(f"mpt-{row['model']}").with_sequence(int(row["seq_len"]))
        flop = Workload(model).flop_of_step(checkpointing=False)
        flops = float(row["tokens_per_s_per_gpu"]) / model.sequence * flop
        peak = PEAKS["H100" if "H100" in row["section"] else "A100"]
        assert 100 * flops / peak == pytest.approx(float(row["mfu_pct"]), rel=0.04), row


def test_a_size_alone_gives_the_usual_shape() -> None:
    for parameters, layers, hidden in [
        (124e6, 9, 1088),
        (6.7e9, 32, 4160),
        (13e9, 40, 5184),
        (175e9, 96, 12352),
    ]:
        shape = Transformer.of_size(parameters)
        assert (shape.layers, shape.hidden) == (layers, hidden)


@settings(max_examples=examples(100))
@given(st.floats(1e6, 1e12))
def test_a_size_alone_gives_about_as_many_parameters(parameters: float) -> None:
    shape = Transformer.of_size(parameters)
    assert 12 * shape.layers * shape.hidden**2 == pytest.approx(parameters, rel=0.35)


def test_training_costs_6_p_a_token_and_lora_4() -> None:
    model = model_of_size("7B", sequence=1)
    full, lora = (Workload(model, method) for method in (Method.FSDP, Method.LORA))
    assert full.flop_of_step(checkpointing=False) == pytest.approx(6 * 7e9, rel=0.001)
    assert lora.flop_of_step(checkpointing=False) == pytest.approx(4 * 7e9, rel=0.001)
    assert full.flop_of_step(checkpointing=True) == pytest.approx(8 * 7e9, rel=0.001)


def test_checkpointing_keeps_less() -> None:
    for name in ("llama-8b", "resnet50", "stable-diffusion-2"):
        less, more = (
            find_model(name).kept_bytes(checkpointing=c, full_precision=False)
            for c in (True, False)
        )
        assert 0 < less < more


def test_images_have_no_sequence() -> None:
    with pytest.raises(RequestError, match="samples have no length"):
        find_model("resnet50").with_sequence(128)
    assert find_model("bert-large").with_sequence(128).units_per_sample == 1


def test_a_model_needs_a_shape_or_operations() -> None:
    with pytest.raises(RequestError, match="forward_flop"):
        Model("odd", "convolution", 1e6, "images")
    with pytest.raises(RequestError, match="family"):
        Model("odd", "tree", 1e6, "images", forward_flop=1.0, activation_bytes=1.0)


def test_a_model_takes_no_longer_samples_than_it_has_learned_positions_for() -> None:
    assert find_model("gpt2").with_sequence(1024).sequence == 1024
    with pytest.raises(
        RequestError, match=r"seq: 2048 \(expected at most 1024: gpt2 has learned so many"
    ):
        find_model("gpt2").with_sequence(2048)
    assert find_model("llama-8b").with_sequence(131_072).sequence == 131_072
