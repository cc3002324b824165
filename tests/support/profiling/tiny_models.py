"""Models for tests that train: ``--model tiny_models:build``."""

from __future__ import annotations

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
