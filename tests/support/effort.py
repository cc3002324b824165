"""How hard a suite tries: `make test` must be done in minutes, `make test-slow` need not."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

THOROUGH = "THOROUGH_TESTS" in os.environ


def examples(count: int, share: int = 16) -> int:
    """This many examples in the thorough suite, a sixteenth of them in the quick one, but not fewer
    than six. Slow tests have a smaller share.
    """
    return count if THOROUGH else max(min(count, 6), count // share)


def sampled(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """Parameters of a test: the quick suite has each ``every``-th, the others are ``slow``.

    Tuples are several.
    """
    return [case if n % every == 0 else _slow(case) for n, case in enumerate(cases)]


def in_ring_2(names: Iterable[str], word: str) -> list[Any]:
    """Parameters of a test; those with a word in their name start a process or a slow server."""
    marks = {True: pytest.mark.system, False: ()}
    return [pytest.param(name, marks=marks[word in name]) for name in names]


def _slow(case: Any) -> Any:
    if isinstance(case, ParameterSet):
        return case._replace(marks=(*case.marks, pytest.mark.slow))
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
