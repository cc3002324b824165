from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("google-bert/bert-base-uncased", "bert-base"),
    ],
)
def test_ids_of_hugging_face(name: str, preset: str) -> None:
    assert find_model(name).name == preset


def test_an_id_of_another_model_is_refused() -> None:
    with pytest.raises(RequestError, match="did you mean"):
        find_model("meta-llama/Llama-2-70b-hf")


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
