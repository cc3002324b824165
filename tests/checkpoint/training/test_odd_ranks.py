"""What is wrong on several ranks is told on all of them, when it can be told, and none waits for
another in vain.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.checkpoint.odd_ranks import run  # noqa: E402

pytestmark = [pytest.mark.xdist_group("odd ranks"), pytest.mark.slow]
CASES = (
    "refused_on_one_rank",
    "an_optimizer_made_too_early",
    "steps_of_another_optimizer",
    "states_that_could_not_be_restored",
    "sharded_too_finely",
    "sharded_as_finely_as_may_be",
    "a_version_that_one_rank_fetches_for_long",  # it shortens what ranks wait for one another
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run(CASES, tmp_path_factory.mktemp("ranks"))


def test_what_one_rank_refuses_all_refuse_at_once(said: dict[str, list[str]]) -> None:
    first, second = said["refused_on_one_rank"]
    assert "RequestError: invalid value for ['extra']['odd']['value']: 'set'" in second
    assert "CheckpointError: rank 1: invalid value for ['extra']['odd']['value']: 'set'" in first


def test_an_optimizer_of_the_parameters_before_they_were_sharded(
    said: dict[str, list[str]],
) -> None:
    for each in said["an_optimizer_made_too_early"]:
        assert "optimizer: 'SGD' (expected one made after the model was sharded" in each


def test_steps_of_a_sharded_model_that_are_not_seen(said: dict[str, list[str]]) -> None:
    for each in said["steps_of_another_optimizer"]:
        assert "CheckpointError: no checkpoint was saved: the parameters change, but step()" in each
    assert "nothing is saved automatically" in said["steps_of_another_optimizer"][0]


def test_sharded_states_of_which_nothing_tells_how_to_shard_them_again(
    said: dict[str, list[str]],
) -> None:
    """Nothing is saved, which is an error at the end, too."""
    for each in said["states_that_could_not_be_restored"]:
        assert (
            "CheckpointError: version 2 was due and is not safe" in each and "'nested'" in each
        ), each


def test_a_model_that_is_sharded_too_finely_for_what_its_optimizer_will_keep(
    said: dict[str, list[str]],
) -> None:
    assert all(
        "sharded into 120003 runs of bytes on this rank" in each
        for each in said["sharded_too_finely"]
    )
    assert all("ended" in each for each in said["sharded_as_finely_as_may_be"])


def test_a_fetch_may_take_longer_than_ranks_wait_for_one_another(
    said: dict[str, list[str]],
) -> None:
    assert all("restored 1" in each for each in said["a_version_that_one_rank_fetches_for_long"])
