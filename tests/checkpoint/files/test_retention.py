"""Which versions stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.checkpoint.tiers.base import kept
from deepvm.errors import RequestError

VERSIONS = st.lists(st.integers(0, 10_000), max_size=40)
POLICY = {
    "keep": st.integers(1, 10),
    "every": st.integers(0, 3000),
    "best": st.sets(st.integers(0, 10_000)),
}


def test_examples() -> None:
    assert kept([1, 2, 3]) == {2, 3}
    assert kept([3, 1, 2, 3], keep=1) == {3}
    assert kept([]) == set()
    assert kept(range(100, 2600, 100), keep=2, every=1000) == {1000, 2000, 2400, 2500}
    assert kept([130, 990, 1015, 1400, 2999, 3001], keep=1, every=1000) == {1015, 2999, 3001}
    assert kept([1, 2, 3, 4], keep=1, best={2, 9}) == {2, 4}


@given(versions=VERSIONS, **POLICY)
def test_the_newest_and_the_best_stay(
    versions: list[int], keep: int, every: int, best: set[int]
) -> None:
    stay = kept(versions, keep, every, best)
    assert stay <= set(versions)
    assert set(sorted(set(versions))[-keep:]) <= stay
    assert best & set(versions) <= stay
    if every:
        assert {v for v in versions if v and v % every == 0} <= stay


@given(versions=VERSIONS, **POLICY)
def test_asking_again_lets_nothing_more_go(
    versions: list[int], keep: int, every: int, best: set[int]
) -> None:
    stay = kept(versions, keep, every, best)
    assert kept(sorted(stay), keep, every, best) == stay


@given(versions=VERSIONS, more=st.integers(1, 5000), **POLICY)
def test_what_went_is_never_missed(
    versions: list[int], more: int, keep: int, every: int, best: set[int]
) -> None:
    stay = kept(versions, keep, every, best)
    newer = max(versions, default=0) + more
    assert kept([*versions, newer], keep, every, best) - {newer} <= stay
    assert kept([*stay, newer], keep, every, best) == kept([*versions, newer], keep, every, best)


@given(VERSIONS, st.integers(1, 10))
def test_no_more_than_asked(versions: list[int], keep: int) -> None:
    assert len(kept(versions, keep)) == min(keep, len(set(versions)))


def test_policies_that_cannot_be() -> None:
    for policy in [{"keep": 0}, {"keep": -1}, {"every": -1}]:
        with pytest.raises(RequestError):
            kept([1], **policy)
