"""Names of elsewhere are understood; what nobody can tell stays unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deepvm.catalog.published.hardware import accelerators
from deepvm.catalog.published.workloads import presets
from deepvm.catalog.store import load_catalog
from deepvm.core import meanings
from deepvm.core.meanings import meant_gpu, meant_model, none_of, not_rented

GPUS = [gpu.name for gpu in accelerators()]


def test_models() -> None:
    for typed, meant in [
        ("llama3", "llama-8b"),
        ("Llama", "llama-8b"),
        ("llama2", "llama-7b"),
        ("llama-3-8b", "llama-8b"),
        ("llama-3.1-70b-instruct", "llama-70b"),
        ("meta-llama/Llama-3.1-8B", "llama-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("Qwen/Qwen2.5-32B-Instruct", "qwen2.5-32b"),
        ("qwen3", "qwen3-8b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("EleutherAI/gpt-neox-20b", "gpt-neox-20b"),
        ("bert", "bert-base"),
        ("bert-base-uncased", "bert-base"),
        ("BERT_large", "bert-large"),
        ("gpt", "gpt2"),
        ("GPT-2", "gpt2"),
        ("sd", "stable-diffusion-2"),
        ("stable diffusion", "stable-diffusion-2"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "sdxl"),
        ("resnet", "resnet50"),
        ("ResNet 50", "resnet50"),
        ("resnet-152", "resnet152"),
        ("vit", "vit-b"),
        ("llama-9b", ""),
        ("falcon-40b", ""),
        ("mine", ""),
        ("", ""),
    ]:
        found = meant_model(typed, presets())
        assert (presets()[found].name if found else "") == meant


def test_families_mean_models_that_there_are() -> None:
    assert set(meanings.MODELS.values()) <= set(presets())
    for start in meanings._FAMILIES.values():
        assert any(name.startswith(f"{start}-") for name in presets())


def test_gpus() -> None:
    for typed, meant in [
        ("a100-80gb", "A100 --gpu-memory-min 80GB"),
        ("A100 40GB", "A100 --gpu-memory-min 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 --gpu-memory-min 80GB"),
        ("H100 SXM", "H100"),
        ("h100-pcie", "H100"),
        ("8xH100", "H100"),
        ("Tesla T4", "T4"),
        ("v100-16g", "V100 --gpu-memory-min 16GB"),
        ("a10g", "A10G"),
        ("l40", "L40S"),
        ("rtx pro 6000", "'RTX PRO Server 6000'"),
        ("Hopper", "H100"),
        ("Q100", ""),
        ("", ""),
    ]:
        assert meant_gpu(typed, GPUS, "--gpu-memory-min") == meant


def test_other_names_mean_gpus_that_there_are() -> None:
    sold = {i.gpu.name for i in load_catalog("aws", prices="snapshot") if i.gpu}
    assert set(meanings.GPUS.values()) <= sold | set(GPUS)
    assert {near for _, near in meanings.NOT_RENTED.values() if near} <= sold
    assert meant_gpu("hopper", ["T4"]) == "", "of another catalog"


def test_gpus_that_no_cloud_rents_are_named() -> None:
    for typed, said in [
        ("4090", "4090 (GeForce) is in no cloud's catalog here; nearest: --gpu L40S"),
        ("RTX 3090 Ti", "RTX 3090 Ti (GeForce) is in no cloud's catalog here; nearest: --gpu A10G"),
        (
            "geforce-rtx-5090",
            "geforce-rtx-5090 (GeForce) is in no cloud's catalog here; nearest: --gpu '",
        ),
        ("MI300X", "MI300X (AMD) is in no cloud's catalog here"),
        ("TPU v5e", "TPU v5e (Google) is in no cloud's catalog here"),
        ("H100", ""),
        ("V100", ""),
    ]:
        found = not_rented(typed, [*GPUS, "RTX PRO Server 6000"])
        assert found.startswith(said) and bool(found) == bool(said)


def test_no_gpu_that_is_known_is_said_to_be_nowhere() -> None:
    assert not [gpu for gpu in GPUS if not_rented(gpu, GPUS)]
    assert (
        none_of("4090", ["L4", "T4"], "") == "L4, T4; 4090 (GeForce) is in no cloud's catalog here"
    )
    assert none_of("T5", ["L4", "T4"], "T4") == "L4, T4; did you mean T4?"


@given(st.text(max_size=60))
def test_anything_may_be_typed(text: str) -> None:
    for found in (meant_model(text, presets()), meant_gpu(text, GPUS)):
        assert found == found.strip()
    not_rented(text, GPUS)
