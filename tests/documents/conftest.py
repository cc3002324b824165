"""Declarations of objects for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from deepvm.documents import build, declared, models

Declare = Callable[[Mapping[str, Any]], None]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Makes declarations those of the file ``test``."""

    def put(objects: Mapping[str, Any]) -> None:
        files = {"test": objects}
        monkeypatch.setattr(declared, "read_data", lambda name: files[name[10:-5]])
        for cached in caches:
            cached.cache_clear()

    caches = (declared.definitions, declared.declared, build.ordered, models.model_of)
    yield put
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
