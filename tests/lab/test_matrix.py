"""Matrix files: the runs that they mean, and what is refused with line, key and what is allowed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import ROOT

from deepvm.documents.declared import properties
from deepvm.errors import DataError, JobFormatError
from deepvm.lab.matrix import FORMAT, SIZES, MatrixFile, find_matrix, reference_of, runs_of, shipped
from deepvm.lab.training.datasets import DATASETS
from deepvm.lab.training.models import MODELS

HEAD = """name: m
datasets: [digits]
models: [resnet8]
failures:
  base: {exit: [40, 80]}
variants: [none, blk]
world: 2
global_batch: 64
steps: 120
checkpoint_every: 20
"""


def parsed(text: str) -> MatrixFile:
    return FORMAT.parse(text, "m.yaml")


def with_line(key: str, line: str) -> str:
    """The head with another line for a key."""
    return "".join(
        line + "\n" if one.startswith(f"{key}:") else one + "\n" for one in HEAD.splitlines()
    )


BAD = {
    # text, a part of the message
    "empty": ("", "is empty (expected a matrix file"),
    "model of tokens": (
        with_line("models", "models: [gpt-tiny]"),
        "m.yaml:3: models[0]: gpt-tiny does not train on digits",
    ),
    "width": (
        with_line("models", "models: [{name: resnet8, width: 9}]"),
        "m.yaml:3: models[0].width: 9 is no multiple",
    ),
    "norm of tokens": (
        HEAD.replace("[digits]", "[tokens]").replace(
            "[resnet8]", "[{name: gpt-tiny, norm: batch}]"
        ),
        "m.yaml:3: models[0].norm: only for ResNets; gpt-tiny has LayerNorm",
    ),
    "two of a name": (
        with_line("models", "models: [resnet8, {name: resnet8, width: 8}]"),
        "models[1]: resnet8 is there twice",
    ),
    "late": (
        HEAD.replace("80]", "120]"),
        "m.yaml:5: failures.base.exit: step 120 is not before the end: 119 or less",
    ),
    "never": (HEAD.replace("[40, 80]", "{}"), "m.yaml:5: failures.base.exit: neither at nor count"),
    "too many": (
        HEAD.replace("[40, 80]", "{count: 120}"),
        "120 failures do not fit into the 96 possible",
    ),
    "no option": (
        HEAD.replace("[40, 80]", "{at: [40], mbps: 3}"),
        "failures.base.exit.mbps: exit has no mbps",
    ),
    "no rank": (HEAD.replace("[40, 80]", "{at: [40], rank: 2}"), "there is no rank 2: there are 2"),
    "nothing": (
        HEAD.replace("{exit: [40, 80]}", "{}"),
        "m.yaml:5: failures.base: has no fault; leave it out, or use none",
    ),
    "step twice": (
        HEAD.replace("[40, 80]", "[40, 40]"),
        "m.yaml:5: failures.base.exit: step 40 twice",
    ),
    "seed twice": (
        HEAD + "seeds: [0, 1, 0]\n",
        "m.yaml:11: seeds[2]: 0 is there twice: names of runs would collide",
    ),
    "variant twice": (
        with_line("variants", "variants: [blk, blk]"),
        "m.yaml:6: variants[1]: blk is there twice",
    ),
    "no share": (
        HEAD.replace("{exit: [40, 80]}", "{eio: 0}"),
        "m.yaml:5: failures.base.eio: needs share, above 0",
    ),
    "share left out": (
        HEAD.replace("{exit: [40, 80]}", "{enospc: {}}"),
        "failures.base.enospc: needs share, above 0",
    ),
    "no speed": (
        HEAD.replace("{exit: [40, 80]}", "{slow: {}}"),
        "failures.base.slow: needs mbps, above 0",
    ),
    "no agent": (
        HEAD.replace("exit: [40, 80]", "kill: {at: [40], target: agent}"),
        "forkserver has no agent; use launcher",
    ),
    "nothing to damage": (
        HEAD.replace("exit: [40", "torn: [19"),
        "base.torn: at step 19 there is no checkpoint to damage",
    ),
    "rank that does not write": (
        HEAD.replace("exit: [40, 80]", "kill: {at: [40], target: write, rank: 1}"),
        "m.yaml:5: failures.base.kill: only rank 0 of blocking writes",
    ),
    "no node": (
        HEAD.replace("exit: [40, 80]", "node: [40]"),
        "m.yaml:5: failures.base: no variant can meet it",
    ),
    "nobody fails": (
        with_line("variants", "variants: [none]"),
        "m.yaml:5: failures.base: no variant can meet it",
    ),
    "calm": (
        HEAD.replace("base:", "calm:"),
        "m.yaml:5: failures.calm: calm is the name of runs without failures",
    ),
    "a name with a slash": (HEAD.replace("base:", "../x:"), "m.yaml:5: "),
    "ranks": (
        with_line("world", "world: 3"),
        "m.yaml:7: world: 3 ranks do not divide the global batch, 64",
    ),
    "no world": (with_line("world", "keep: 3"), "elastic: expected exactly one of world"),
    "both worlds": (
        HEAD + "elastic: [[0, 2], [60, 1]]\n",
        "m.yaml:11: elastic: expected exactly one of world and elastic",
    ),
    "elastic order": (
        with_line("world", "elastic: [[0, 2], [60, 1], [60, 2]]"),
        "expected steps from 0 that grow",
    ),
    "elastic begin": (
        with_line("world", "elastic: [[1, 2], [60, 1]]"),
        "expected steps from 0 that grow",
    ),
    "elastic end": (with_line("world", "elastic: [[0, 2], [120, 1]]"), "stay below 120"),
    "elastic shards": (
        with_line("world", "elastic: [[0, 4], [60, 8]]") + "virtual_shards: 4\n",
        "8 ranks do not divide the 4",
    ),
    "batch": (
        with_line("global_batch", "global_batch: 2000"),
        "m.yaml:8: global_batch: 2000 is more than the 1797 samples",
    ),
    "size": (
        with_line("datasets", "datasets: [{name: digits, size: 1798}]"),
        "digits has 1797 samples, not 1798",
    ),
    "small": (
        with_line("datasets", "datasets: [{name: digits, size: 60}]"),
        "64 is more than the 60 samples of digits",
    ),
    "parts": (
        HEAD + "accumulate: 5\n",
        "m.yaml:11: accumulate: 5 parts do not divide a rank's batch, 32",
    ),
    "every": (
        with_line("checkpoint_every", "checkpoint_every: 121"),
        "121 is more than steps, 120",
    ),
    "version": (HEAD + "schema_version: deepvm.matrix/2\n", "expected deepvm.matrix/1"),
}


def test_what_cannot_be_is_refused_with_its_place() -> None:
    for what in BAD:
        text, message = BAD[what]
        with pytest.raises(JobFormatError) as error:
            parsed(text)
        assert (
            message in str(error.value)
            and str(error.value).startswith("m.yaml:")
            and error.value.exit_code == 2
        )


def test_a_file_that_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.yaml: does not exist .expected a matrix file"):
        FORMAT.read(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("name", "said"), [("qiuck", ".*; did you mean quick"), ("nonsense", "ecrl-exp4, ")]
)
def test_a_name_that_nothing_has_says_what_there_is(name: str, said: str) -> None:
    with pytest.raises(DataError, match=f"{name}: no such file, nor a matrix of deepvm: {said}"):
        find_matrix(name)


def test_what_has_no_failures_is_shared() -> None:
    text = HEAD.replace("variants: [none, blk]", "variants: [none, ref-blk, blk, deepvm]")
    names = [
        run.name
        for run in runs_of(parsed(text.replace("  base:", "  late: {exit: [37]}\n  base:")))
    ]
    assert names == [
        "digits-resnet8-calm-none-s0",
        "digits-resnet8-calm-ref-blk-s0",
        "digits-resnet8-late-blk-s0",
        "digits-resnet8-late-deepvm-s0",
        "digits-resnet8-base-blk-s0",
        "digits-resnet8-base-deepvm-s0",
    ]


def test_variants_of_a_seed_stand_side_by_side() -> None:
    """What is compared is made one after the other: a shared machine does the same to both."""
    text = with_line("variants", "variants: [blk, ovl, deepvm]") + "seeds: [0, 1, 2]\n"
    names = [run.name for run in runs_of(parsed(text))]
    assert [name[-2:] for name in names] == ["s0"] * 3 + ["s1"] * 3 + ["s2"] * 3


def test_a_matrix_without_failures_is_one_of_references() -> None:
    text = HEAD.replace("failures:\n  base: {exit: [40, 80]}\n", "")
    runs = runs_of(parsed(text))
    assert [run.name for run in runs] == [
        "digits-resnet8-calm-none-s0",
        "digits-resnet8-calm-blk-s0",
    ]
    assert all(run.undisturbed for run in runs)


def test_without_checkpoints_nothing_can_go_on_in_another_world() -> None:
    text = with_line("world", "elastic: [[0, 4], [40, 2], [80, 4]]").replace(
        "[none, blk]", "[none, ref-blk, blk]"
    )
    worlds = {run.variant: run.worlds for run in runs_of(parsed(text))}
    assert worlds == {
        "none": ((0, 4),),
        "ref-blk": ((0, 4), (40, 2), (80, 4)),
        "blk": ((0, 4), (40, 2), (80, 4)),
    }
    assert parsed(text).shards == 4


def test_strikes_come_in_their_order_and_know_what_they_end() -> None:
    text = HEAD.replace(
        "{exit: [40, 80]}",
        "{torn: [70], exit: [80, 40], stop: {at: [50], rank: 1, seconds: 0.5}, eio: 0.2}",
    )
    run = runs_of(parsed(text))[-1]
    assert [(one.fault, one.step, one.rank, one.seconds) for one in run.strikes] == [
        ("exit", 40, 0, 0.0),
        ("stop", 50, 1, 0.5),
        ("torn", 70, 0, 0.0),
        ("exit", 80, 0, 0.0),
    ]
    assert list(run.disk) == ["eio"] and run.disk["eio"].share == 0.2


def test_memory_nodes_are_lost_only_where_there_is_one() -> None:
    text = HEAD.replace("{exit: [40, 80]}", "{node: [50], exit: [40]}").replace(
        "[none, blk]", "[blk, deepvm-tcp]"
    )
    faults = {run.variant: [one.fault for one in run.strikes] for run in runs_of(parsed(text))}
    assert faults == {"deepvm-tcp": ["exit", "node"]}


@given(st.integers(1, 60), st.integers(0, 50), st.integers(0, 50))
def test_random_kills_are_the_same_for_the_same_seed(count: int, one: int, other: int) -> None:
    def strikes(seed: int) -> tuple[object, ...]:
        text = HEAD.replace("{exit: [40, 80]}", f"{{kill: {{count: {count}, seed: {seed}}}}}")
        return runs_of(parsed(text))[-1].strikes

    first = strikes(one)
    assert first == strikes(one) and (first != strikes(other) or one == other or count < 3)
    steps = [strike.step for strike in first]  # type: ignore[attr-defined]
    assert (
        len(set(steps)) == count
        and all(0 < step <= 96 for step in steps)
        and steps == sorted(steps)
    )


def test_repeats_are_killed_at_other_moments() -> None:
    text = (
        HEAD.replace("{exit: [40, 80]}", "{kill: {count: 5}}").replace("[none, blk]", "[blk, ovl]")
        + "seeds: [0, 1]\n"
    )
    steps = {
        (run.variant, run.seed): [one.step for one in run.strikes] for run in runs_of(parsed(text))
    }
    assert steps["blk", 0] == steps["ovl", 0] != steps["blk", 1] == steps["ovl", 1]


def test_a_file_here_comes_before_one_of_that_name_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick").write_text(HEAD)
    assert find_matrix("quick").name == "m"


def test_each_run_has_a_folder_of_its_own() -> None:
    text = with_line("datasets", "datasets: [digits, fashion-mnist]") + "seeds: [0, 10, 1]\n"
    text = text.replace("models: [resnet8]", "models: [resnet8, resnet18]").replace(
        "[none, blk]", "[none, blk, ovl]"
    )
    names = [run.name for run in runs_of(parsed(text))]
    assert len(set(names)) == len(names) == 2 * 2 * 3 * 3


def test_a_run_knows_what_it_is_compared_with() -> None:
    run = runs_of(parsed(HEAD))[-1]
    reference = reference_of(run)
    assert (
        reference.undisturbed
        and reference.name == "digits-resnet8-calm-none-s0"
        and reference.seed == run.seed
    )


def test_matrices_that_come_with_deepvm_can_be_read() -> None:
    assert all(find_matrix(name).name == name for name in shipped())
    quick = find_matrix("quick")
    assert quick.name == "quick" and {"exit", "kill", "torn"} <= {
        s.fault for r in runs_of(quick) for s in r.strikes
    }
    ecrl = FORMAT.read(ROOT / "data" / "lab" / "ecrl-exp4.yaml")
    suites = {
        (r.suite.dataset.name, r.suite.model.name, r.suite.failure)
        for r in runs_of(ecrl)
        if not r.undisturbed
    }
    expected = itertools.product(
        ("cifar10", "cifar100"), ("resnet18", "resnet50"), ("base", "late")
    )
    assert suites == set(expected) and len(ecrl.datasets) * len(ecrl.models) * 2 == 8


def test_names_of_files_are_those_of_the_trainer() -> None:
    """They stand twice: a matrix is read without torch."""
    assert tuple(SIZES) == tuple(DATASETS) == tuple(properties("matrix.Dataset")["name"]["enum"])
    assert tuple(MODELS) == tuple(properties("matrix.Model")["name"]["enum"])


def test_an_empty_file_is_a_wrong_matrix(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(JobFormatError, match="is empty .expected a matrix file"):
        find_matrix(str(path))
