"""Loads public catalogs by name."""

from __future__ import annotations

import importlib
from functools import cache

from deepvm.catalog.public.source import PublicSource


@cache
def source(name: str) -> PublicSource:
    """The ``SOURCE`` of the module of this name, which is loaded now."""
    module = importlib.import_module(f"deepvm.catalog.public.{name}")
    result: PublicSource = module.SOURCE
    return result
