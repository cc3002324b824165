from __future__ import annotations

import re
from pathlib import Path

import pytest

from deepvm.catalog.published.workloads import find_model, presets, read_workload
from deepvm.core.training.workload import Method, Precision, Scaling
from deepvm.errors import CatalogFormatError, RequestError


def test_a_preset_with_its_own_batch() -> None:
    found = read_workload(model="ResNet50")
    assert (found.model.name, found.method, found.precision, found.batch) == (
        "resnet50",
        Method.DDP,
        Precision.AUTO,
        128,
    )
    assert found.scaling is Scaling.WEAK and found.samples is None


def test_other_names_of_a_model() -> None:
    assert find_model("llama3.1-8b") is find_model("llama-8b") is presets()["llama3-8b"]


IDS = {
    "gpt2": ["openai-community/gpt2"],
    "gpt2-medium": ["openai-community/gpt2-medium"],
    "gpt2-large": ["openai-community/gpt2-large"],
    "gpt2-xl": ["openai-community/gpt2-xl"],
    "llama-1b": ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"],
    "llama-3b": ["meta-llama/Llama-3.2-3B", "unsloth/Llama-3.2-3B-Instruct"],
    "llama-7b": ["meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"]
    + ["huggyllama/llama-7b", "codellama/CodeLlama-7b-Python-hf", "lmsys/vicuna-7b-v1.5"],
    "llama-8b": ["meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3-8B-Instruct"]
    + ["meta-llama/Meta-Llama-3.1-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"],
    "llama-13b": ["meta-llama/Llama-2-13b-chat-hf"],
    "llama-70b": ["meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.3-70B-Instruct"],
    "llama-405b": ["meta-llama/Llama-3.1-405B-Instruct"],
    "mistral-7b": ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.3"],
    "qwen2.5-0.5b": ["Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2-0.5B"],
    "qwen2.5-1.5b": ["Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-Math-1.5B-Instruct"],
    "qwen2.5-7b": ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"]
    + ["Qwen/Qwen2.5-7B-Instruct-1M"],
    "qwen2.5-14b": ["Qwen/Qwen2.5-14B-Instruct"],
    "qwen2.5-32b": ["Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen/QwQ-32B"],
    "qwen2.5-72b": ["Qwen/Qwen2.5-72B-Instruct"],
    "qwen3-8b": ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"],
    "gemma2-2b": ["google/gemma-2-2b-it"],
    "gemma2-9b": ["google/gemma-2-9b", "google/gemma-2-9b-it"],
    "phi3-mini": ["microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-128k-instruct"]
    + ["microsoft/Phi-3.5-mini-instruct"],
    "gpt-neox-20b": ["EleutherAI/gpt-neox-20b"],
    "mpt-1b": ["mosaicml/mpt-1b-redpajama-200b"],
    "mpt-7b": ["mosaicml/mpt-7b", "mosaicml/mpt-7b-8k-instruct", "mosaicml/mpt-7b-storywriter"],
    "bert-base": ["google-bert/bert-base-uncased", "bert/bert-base-cased"],
    "bert-large": ["google-bert/bert-large-uncased-whole-word-masking"],
    "vit-b": ["google/vit-base-patch16-224", "google/vit-base-patch16-224-in21k"]
    + ["facebook/deit-base-patch16-224", "timm/vit_base_patch16_224.augreg_in21k"],
    "vit-l": ["google/vit-large-patch16-224", "timm/vit_large_patch16_224.augreg_in21k_ft_in1k"],
    "esm2-150m": ["facebook/esm2_t30_150M_UR50D"],
    "esm2-650m": ["facebook/esm2_t33_650M_UR50D"],
    "resnet18": ["microsoft/resnet-18", "timm/resnet18.a1_in1k"],
    "resnet50": ["microsoft/resnet-50", "timm/resnet50.a1_in1k"],
    "resnet152": ["microsoft/resnet-152", "timm/resnet152.tv2_in1k"],
    "efficientnet-v2-m": ["timm/tf_efficientnetv2_m.in21k_ft_in1k"],
    "stable-diffusion-2": ["stabilityai/stable-diffusion-2-base", "x/stable-diffusion-2-1"],
    "sdxl": ["stabilityai/stable-diffusion-xl-base-1.0", "stabilityai/sdxl-turbo"],
}
# Of the others the shapes are published elsewhere
NOT_ON_THE_HUB = {"mpt-125m", "mpt-350m", "mpt-760m", "mpt-3b", "mpt-13b", "mpt-70b", "yolov3"}


@pytest.mark.parametrize(("preset", "ids"), IDS.items())
def test_ids_of_hugging_face(preset: str, ids: list[str]) -> None:
    assert [find_model(name).name for name in ids] == [preset] * len(ids)


def test_each_preset_has_an_id_and_its_name_is_one() -> None:
    models = {model.name: model for model in presets().values()}
    assert IDS.keys() | NOT_ON_THE_HUB == models.keys()
    for name, model in presets().items():
        if name not in ("efficientnet", "sd2", "stable-diffusion", "yolo"):
            assert find_model(f"someone/{name}") is model, name
        if hub := re.search("config.json of (\\S+) on", model.source):
            assert find_model(hub[1]) is model


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-2-70b-hf",
        "huggyllama/llama-30b",
        "meta-llama/Llama-3.2-11B-Vision",
        "openlm-research/open_llama_3b",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "someone/llama-38b",
        "meta-llama/Llama-4-Scout-17B-16E",
        "mistralai/Mixtral-8x7B-v0.1",
        "mistralai/Mistral-Nemo-Base-2407",
        "Qwen/Qwen2.5-3B",
        "Qwen/Qwen1.5-7B",
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-80B",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "Qwen/Qwen2.5-7B-Instruct-AWQ",
        "google/gemma-2b",
        "google/gemma-7b",
        "google/gemma-2-27b",
        "google/gemma-3-9b",
        "microsoft/phi-2",
        "microsoft/Phi-3-medium-4k-instruct",
        "EleutherAI/gpt-neo-1.3B",
        "distilbert/distilgpt2",
        "mosaicml/mpt-30b",
        "google-bert/bert-base-multilingual-cased",
        "google/vit-base-patch16-384",
        "google/vit-base-patch32-224",
        "google/vit-huge-patch14-224-in21k",
        "facebook/deit-small-patch16-224",
        "facebook/deit-base-distilled-patch16-224",
        "facebook/esm2_t36_3B_UR50D",
        "facebook/esm2_t12_35M_UR50D",
        "microsoft/resnet-34",
        "microsoft/resnet-101",
        "timm/resnet50d.ra2_in1k",
        "timm/tf_efficientnetv2_l.in21k_ft_in1k",
        "timm/tf_efficientnetv2_m.in21k",
        "google/efficientnet-b4",
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        "stabilityai/stable-diffusion-3-medium",
        "stabilityai/stable-diffusion-xl-refiner-1.0",
    ],
)
def test_an_id_of_another_size_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="--params"):
        find_model(name)


def test_what_is_not_modeled_is_said() -> None:
    with pytest.raises(RequestError, match="tensor and pipeline parallelism are not modeled"):
        read_workload(model="llama-8b", method="tp")


def test_a_longer_sequence_means_fewer_samples_at_once() -> None:
    short, long = read_workload(model="llama-8b"), read_workload(model="llama-8b", seq="8192")
    assert (short.batch, long.batch) == (8, 2) and long.model.sequence == 8192


def test_a_model_by_its_size() -> None:
    found = read_workload(params="7B", seq=4096, method="fsdp", global_batch="256", tokens="2e9")
    assert found.model.parameters == 7e9 and found.units == "tokens/s"
    assert (found.batch, found.scaling, found.batch_on(64)) == (256, Scaling.STRONG, 4)
    assert found.samples == pytest.approx(2e9 / 4096)


def test_one_size_in_many_spellings() -> None:
    for size in ["1.5B", "1.5b", "1.5e9", "1.5E+9", "1500M", "0.0015T", 1.5e9]:
        assert read_workload(params=size).model.parameters == pytest.approx(1.5e9)


def test_amounts_of_work() -> None:
    assert read_workload(model="resnet50", samples="1.2M").samples == 1.2e6
    assert read_workload(
        model="resnet50", epochs=90, dataset_size="1281167"
    ).samples == pytest.approx(90 * 1281167)
    assert read_workload(
        model="llama-8b", epochs="1", dataset_size="2.048B"
    ).samples == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("typed", "parameters"),
    [("7 billion", 7e9), ("350 millions", 350e6), ("2,000,000", 2e6), ("8bn", 8e9), ("1e9", 1e9)],
)
def test_counts_in_words(typed: str, parameters: float) -> None:
    assert read_workload(params=typed).model.parameters == parameters


@pytest.mark.parametrize("typed", ["70000T", "1e99", "1.2.3e5", "7 parsecs", "1,5", ""])
def test_what_is_no_count(typed: str) -> None:
    with pytest.raises(RequestError, match="parameters from 100k to 10T"):
        read_workload(params=typed)


def test_what_cannot_be_is_refused_by_name() -> None:
    for options, option, says in [
        ({}, "model", "a model such as llama-8b, or --params 7B"),
        ({"model": "llama-8b", "params": "7B"}, "model", "does not go with --params"),
        ({"model": "lama-8b"}, "model", "did you mean llama-8b"),
        ({"params": "7X"}, "params", "such as 7B"),
        ({"params": "70000T"}, "params", "such as 7B"),
        ({"params": "1e9999"}, "params", "such as 7B"),
        ({"model": "resnet50", "seq": "128"}, "seq", "have no length"),
        ({"model": "llama-8b", "seq": "0"}, "seq", "a whole number from 1"),
        ({"model": "llama-8b", "seq": "2k"}, "seq", "a whole number from 1"),
        ({"model": "gpt2", "method": "zero3"}, "method", "ddp or fsdp or lora"),
        ({"model": "gpt2", "precision": "bf161"}, "precision", "did you mean bf16"),
        (
            {"model": "gpt2", "batch_per_gpu": "8", "global_batch": "64"},
            "global_batch",
            "--batch-per-gpu: give one",
        ),
        ({"model": "gpt2", "batch_per_gpu": "-8"}, "batch_per_gpu", "a whole number"),
        (
            {"model": "resnet50", "tokens": "1B"},
            "tokens",
            "(try: --samples 1B, or --model llama-8b)",
        ),
        ({"model": "gpt2", "tokens": "1B", "samples": "3"}, "samples", "does not go with --tokens"),
        ({"model": "gpt2", "epochs": "3"}, "epochs", "needs --dataset-size"),
        ({"model": "gpt2", "dataset_size": "3"}, "dataset_size", "needs --epochs"),
        ({"model": "gpt2", "tokens": "nan"}, "tokens", "a number above 0"),
        ({"model": "resnet50", "tokens": "-2"}, "tokens", "a number above 0"),
    ]:
        with pytest.raises(RequestError) as caught:
            read_workload(**options)
        assert caught.value.option == option and says in str(caught.value)


def test_a_model_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("parameters: 1.5B\nlayers: 24\nhidden: 2048\nvocabulary: 50000\n")
    found = read_workload(model=str(file)).model
    assert (found.name, found.unit, found.sequence, found.parameters) == (
        "mine",
        "tokens",
        2048,
        1.5e9,
    )
    file.write_text("parameters: 5e6\nforward_flop: 4.1e9\nactivation_bytes: 2e7\n")
    assert read_workload(model=str(file)).model.unit == "images"


def test_a_bad_model_file_names_what_is_wrong(tmp_path: Path) -> None:
    for text, says in [
        ("", "empty"),
        ("- 1\n- 2\n", "not an object"),
        ("layers: 3\nhidden: 5\n", "missing key parameters"),
        ("parameters: many\nlayers: 3\nhidden: 5\n", "the number of parameters"),
        ("parameters: 1e9\nlayers: 3.5\nhidden: 5\n", "a valid integer"),
        ("parameters: 24e9\nlayers: 4\nhidden: 512\n", "about 1.3e.07 with these layers"),
        ("parameters: 1e9\n", "layers: expected layers and hidden"),
        ("parameters: 1e9\nlayers: 3\n", "layers and hidden"),
        ("parameters: 1e9\nlayers: 3\nhidden: 4\nunit: words\n", "'tokens', 'images' or 'samples'"),
    ]:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        with pytest.raises(CatalogFormatError, match=says):
            read_workload(model=str(file))


def test_a_model_file_that_is_not_there() -> None:
    with pytest.raises(CatalogFormatError, match="does not exist"):
        read_workload(model="no/such.yaml")
