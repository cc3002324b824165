"""Functions that read the environment, called in another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from unittest.mock import patch

_Result = TypeVar("_Result")


def in_environment(
    environ: Mapping[str, str], call: Callable[..., _Result], *arguments: Any
) -> _Result:
    """What a call returns where these are the only variables."""
    with patch.dict(os.environ, environ, clear=True):
        return call(*arguments)
