"""The shapes of training loops by name, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from support.checkpoint.loops.run import Run


class Hooks(Enum):
    """What a resumed loop must do without ``ck.steps``."""

    SILENT = "bit for bit, without a warning: an ordinary, healthy loop"
    WARNED = "bit for bit, or with a warning that names what changed"
    UNSUITED = "not at all: an iteration is not one step of an optimizer"


class Steps(Enum):
    """What a resumed loop must do with ``ck.steps``."""

    EQUAL = "bit for bit"
    OWN_STATE = "differ: it carries over a local variable, which is the user's to save"


@dataclass(frozen=True)
class Shape:
    """A loop, and what is expected of it."""

    name: str
    loop: Callable[[Run], None]
    hooks: Hooks
    steps: Steps


SHAPES: dict[str, Shape] = {}
Loop = TypeVar("Loop", bound=Callable[[Run], None])


def shape(hooks: Hooks = Hooks.WARNED, steps: Steps = Steps.EQUAL) -> Callable[[Loop], Loop]:
    """Register a loop under its function's name."""

    def register(loop: Loop) -> Loop:
        name = loop.__name__
        assert name not in SHAPES, name
        SHAPES[name] = Shape(name, loop, hooks, steps)
        return loop

    return register
