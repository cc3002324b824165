"""Whether the code of a test starts a process or a slow server, as far as the names in it say.

Followed are functions, classes and modules of the tests; what the product starts is seen only when
a test runs.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from support.places import TESTS

_STARTERS: dict[str, set[str]] = {
    subprocess.__name__: {"Popen", "run", "call", "check_call", "check_output"},
    multiprocessing.__name__: {"Process", "Pool", "get_context"},
    os.__name__: {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen"},
}
_CACHED = type(functools.cache(len))
_known: dict[Any, bool] = {}
listeners: list[Callable[[str], None]] = []
"""Who learns of what is started."""


def leaves_ring_1(event: str) -> None:
    """A helper that calls this makes a test of ring 2 of each test that uses it."""
    for listener in listeners:
        listener(event)


def starts_process(called: Any) -> bool:
    """Whether a function of the tests, or a method of a class of theirs, starts a process."""
    called = inspect.unwrap(called)
    if called not in _known:
        _known[called] = False  # where it calls itself
        _known[called] = any(map(_starts, _functions(called)))
    return _known[called]


def _functions(called: Any) -> Iterator[FunctionType]:
    if isinstance(called, FunctionType):
        if called.__code__.co_filename.startswith(str(TESTS)):
            yield called
    elif isinstance(called, type):
        for value in list(vars(called).values()):
            method = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if isinstance(method, FunctionType):
                yield from _functions(inspect.unwrap(method))


def _starts(function: FunctionType) -> bool:
    names = set(_names(function.__code__))
    return any(
        _is_start(function.__globals__.get(name, sys.modules.get(name)), names) for name in names
    )


def _is_start(value: Any, names: set[str]) -> bool:
    if isinstance(value, ModuleType):
        if value.__name__ in _STARTERS:
            return bool(names & _STARTERS[value.__name__])
        if not str(getattr(value, "__file__", "")).startswith(str(TESTS)):
            return False
        return any(_is_start(getattr(value, name, None), set()) for name in names)
    if value is leaves_ring_1:
        return True
    return isinstance(value, FunctionType | type | _CACHED) and starts_process(value)


def _names(code: CodeType) -> Iterator[str]:
    """Names in a function's code, and in the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
