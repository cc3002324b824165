"""The callback that receives lines for people."""

from collections.abc import Callable
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]
