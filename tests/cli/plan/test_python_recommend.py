"""``deepvm.recommend``: the command's answer and options, by name."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest
from support.command import Run

import deepvm
from deepvm.core.options import option_of
from deepvm.errors import RequestError
from deepvm.services.plan_options import RankFlags

VIT = {"model": "vit-b", "epochs": 90, "dataset_size": "1.28M"}
VIT_WORDS = ["--model", "vit-b", "--epochs", "90", "--dataset-size", "1.28M"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"budget": 3, "model": "llama-8b", "method": "lora"},
            ["--pw", "3", "--model", "llama-8b", "--method", "lora"],
        ),
        (
            {"total_budget": 300, "deadline": "7d", **VIT},
            ["--total-budget", "300", "--deadline", "7d", *VIT_WORDS],
        ),
        ({"budget": "2.5", "gpu": "T4"}, ["--pw", "2.5", "--gpu", "T4"]),
        ({"budget": 3, "catalog": "paper"}, ["--pw", "3", "--catalog", "paper"]),
    ],
)
def test_it_is_the_answer_of_the_command(
    asked: dict[str, object], words: list[str], run: Run
) -> None:
    answer = deepvm.recommend(**asked, offline=True)  # type: ignore[arg-type]
    said = json.loads(run("recommend", *words, "--offline", "-o", "json")[1])
    found = answer.to_dict()
    assert found["configurations"] == said["configurations"]
    assert found["request"] == said["request"]


def test_options_are_named_once() -> None:
    signature = inspect.signature(deepvm.recommend)
    named = {f.name for f in fields(RankFlags) if option_of(f)} - {"pw"}
    assert named <= set(signature.parameters)
    for name in ("model", "total_budget", "gpu", "offline", "region"):
        parameter = signature.parameters[name]
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.annotation is not parameter.empty
        assert f"{name}: {RankFlags.__dataclass_fields__[name].metadata['option'].help}" in str(
            deepvm.recommend.__doc__
        )


def test_a_catalog_of_ones_own_counts_eflops_unless_a_model_is_named() -> None:
    paper = deepvm.load_catalog("paper")
    assert deepvm.recommend(paper, budget=3.0, checkpoint_size="300MB", buffers=2)[0].rank == 1
    snapshot = deepvm.load_catalog("aws-us-east-1", prices="snapshot")
    named = deepvm.recommend(snapshot, 3, model="llama-8b", method="lora")[0]
    told = deepvm.workload(model="llama-8b", method="lora")
    same = deepvm.recommend(snapshot, 3, training=told)[0]
    assert (str(named.cluster), named.throughput) == (str(same.cluster), same.throughput)
    assert deepvm.recommend(snapshot, 3).request.training is None


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"budget": 3, "method": "magic"}, "method"),
        ({"budget": 3, "prices": "guessed"}, "prices"),
        ({}, "budget"),
        ({"total_budget": 300}, "total_budget"),
        ({"budget": 3, "region": "mars"}, "region"),
    ],
)
def test_what_cannot_be_used_is_named(asked: dict[str, object], option: str) -> None:
    with pytest.raises(RequestError) as raised:
        deepvm.recommend(**asked, offline=True)  # type: ignore[arg-type]
    assert raised.value.option == option


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("budgt", "'budgt'; did you mean 'budget'?"),
        ("modle", "did you mean 'model'?"),
        ("pw", "'pw'"),
    ],
)
def test_an_unknown_keyword_is_an_argument_of_recommend(name: str, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        deepvm.recommend(**{name: 3})
    text = str(raised.value)
    assert text.startswith("recommend() got an unexpected keyword argument ")
    assert text.endswith(said)


def test_short_texts() -> None:
    paper = deepvm.load_catalog("paper")
    assert repr(paper) == "<Catalog paper: 14 types, 6 with GPUs, prices of 2023-10-01>"
    found = deepvm.recommend(paper, 3)
    assert len(repr(found[0])) < 160 and "17 x g4dn.xlarge" in repr(found[0])
    assert found._repr_html_().count("<th>") == 8
